"""Build the call of Snakemake, for `slipway run` and for the job of `slipway submit`. Pure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.installation import SNAKEFILE


def snakemake_argv(profile: str, study: Path, many: Sequence[str] = (), rest: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command of this installation's Snakemake, wherever it works: every path of ours is absolute.

    What takes any number of values, such as those in `many`, stands before what takes one, or a target in `rest` would be one more of
    them. `-P`: no module of ours or of Python's comes from the directory where the user is.
    """
    begin = (sys.executable, "-P", "-m", "snakemake", "--configfile", str(study.absolute()))
    return (*begin, *many, "--snakefile", str(SNAKEFILE), "--profile", profile, *rest)
