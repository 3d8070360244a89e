"""A copy of the checkout, in which a test exchanges what it likes."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("base", "cluster", "containers", "data_prep", "extras", "workflow", "profiles", "config", "snakemake_executor_plugin_slipway")


def copy_checkout(target: Path) -> None:
    """Copy into a directory that is there what Snakemake and Slipway's commands need, with what Python compiled of it."""
    shutil.copy(ROOT / "Snakefile", target)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, target / folder)
