"""Complete studies, sites and runs for a shell.

They are read from names and two keys, without the checks of a study, which take longer than a typist waits; whatever cannot be read
completes to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from base.untrusted import open_plain
from base.userpath import absolute_path, expanded
from cluster.installation import default_storage, site_files
from workflow.study.paths import results_dir

SUFFIXES: Final = (".yaml", ".yml")
REMOTE_VERBS: Final = ("setup", "plan", "submit", "status", "logs", "tables", "report", "verify", "session", "close")
MAX_BYTES: Final = 1 << 20


def studies(incomplete: str) -> list[str]:
    """Complete YAML files, and directories on the way to them."""
    directory, name = os.path.split(incomplete)
    try:
        entries = [entry for entry in os.scandir(directory or ".") if entry.name.startswith(name) and (name or entry.name[0] != ".")]
        found = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    except OSError:
        return []
    return sorted(os.path.join(directory, text) for text in found if text.endswith(("/", *SUFFIXES)))  # noqa: PTH118 - as it was typed


def verbs(incomplete: str) -> list[str]:
    """Complete the verbs of `slipway remote`."""
    return _beginning(incomplete, set(REMOTE_VERBS))


def sites(incomplete: str) -> list[str]:
    """Complete names of sites, or files where a path was begun."""
    if os.sep in incomplete or incomplete.startswith("."):
        return studies(incomplete)
    return _beginning(incomplete, {*site_files(), "local"})


def runs(options: Mapping[str, Any], environ: Mapping[str, str], incomplete: str) -> list[str]:
    """Complete runs of the study that was named before, of which there is something to see. `options`: what of the line is known."""
    study = Path(options.get("study") or "config/study.yaml")
    name = _keys(study).get("study")
    site = options.get("site") or environ.get("SLIPWAY_SITE")
    if not site and "default" not in site_files() and (beside := study.parent / "site.yaml").is_file():
        site = str(beside)
    storage = _storage(site)
    if not isinstance(name, str) or storage is None:
        return []
    try:
        return _beginning(incomplete, os.listdir(results_dir(storage, name) / "runs"))
    except (OSError, ValueError):
        return []


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _storage(site: str | None) -> Path | None:
    files = site_files()
    if site in (None, "local") and (site or "default") not in files:
        return default_storage()
    file = files.get(site or "default", Path(site or ""))
    storage = _keys(file).get("storage")
    try:
        return absolute_path(expanded(storage, os.environ), file.parent) if isinstance(storage, str) else None
    except ValueError:
        return None


def _keys(file: Path) -> dict[str, Any]:
    import yaml  # main.py imports this module for its help too

    try:
        with os.fdopen(open_plain(file), "rb") as content:
            value = yaml.load(content.read(MAX_BYTES), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError, RecursionError, ValueError, RuntimeError):
        return {}
    return value if isinstance(value, dict) else {}
