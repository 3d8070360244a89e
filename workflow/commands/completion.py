"""Complete studies, sites and runs for a shell.

They are read from names and two keys, without the module of the command and the checks of a study, which take longer than a typist waits;
whatever cannot be read completes to nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.main import get_command_from_info
from typer.models import CommandInfo

from base import humanize, untrusted
from cluster.installation import default_storage, site_files
from workflow.commands.options import PassingCommand
from workflow.study.paths import results_dir

SUFFIXES: Final = (".yaml", ".yml")
REMOTE_VERBS: Final = ("setup", "plan", "submit", "status", "logs", "tables", "report", "verify", "session", "close")
MAX_BYTES: Final = 1 << 20
_OPTIONS: Final = ("--study", "-s", "--site")  # whose values are completed without the command


def studies(incomplete: str) -> list[str]:
    """Complete YAML files, and directories on the way to them."""
    directory, name = os.path.split(incomplete)
    try:
        entries = [entry for entry in os.scandir(directory or ".") if entry.name.startswith(name) and (name or entry.name[0] != ".")]
        found = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    except OSError:
        return []
    return sorted(os.path.join(directory, text) for text in found if text.endswith(("/", *SUFFIXES)))  # noqa: PTH118 - as it was typed


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
    storage = _storage(site, study.parent)
    if not isinstance(name, str) or storage is None:
        return []
    try:
        return _beginning(incomplete, os.listdir(results_dir(storage, name) / "runs"))
    except (OSError, ValueError):
        return []


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _storage(site: str | None, folder: Path) -> Path | None:
    files = site_files()
    if site in (None, "local") and (site or "default") not in files:
        return default_storage(folder)
    file = files.get(site or "default", Path(site or ""))
    storage = _keys(file).get("storage")
    try:
        return humanize.absolute_path(humanize.expanded(storage, os.environ), file.parent) if isinstance(storage, str) else None
    except ValueError:
        return None


def _keys(file: Path) -> dict[str, object]:
    import yaml  # main.py imports this module for its help too

    try:
        with os.fdopen(untrusted.open_plain(file), "rb") as content:
            value = yaml.load(content.read(MAX_BYTES), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError, RecursionError, ValueError, RuntimeError):
        return {}
    return value if isinstance(value, dict) else {}


# The commands as a shell sees them that completes a value: a site, a study, and whatever stands without an option.


def needs_command(environ: Mapping[str, str]) -> bool:
    """Return True if a shell wants to have an option completed, or the value of one, that only its command knows."""
    *_, before, last = [
        "",
        *re.split("[ \n]", environ.get("_TYPER_COMPLETE_ARGS", environ.get("COMP_WORDS", ""))),
    ]  # bash joins by newlines
    return any(word.startswith("-") and "=" not in word for word in (last, before)) and before not in _OPTIONS


OF_STUDY: Final = ("run", "plan", "submit", "status", "tables", "verify", "notify", "check-frameworks", "report")


def _word(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a word that stands without an option."""
    command, before = context.info_name, len(context.params.get("words") or ())
    if command == "logs":
        return runs(context.params, os.environ, incomplete)
    if command == "remote":
        return _beginning(incomplete, REMOTE_VERBS) if before == 1 else []
    return studies(incomplete) if command in OF_STUDY or (command == "export" and before) else []


def _words(
    words: Annotated[list[str] | None, typer.Argument(autocompletion=_word)] = None,
    study: Annotated[str | None, typer.Option("--study", "-s", autocompletion=studies)] = None,
    site: Annotated[str | None, typer.Option("--site", autocompletion=sites)] = None,
) -> None:
    """Complete the words of a command."""


def completer(command: str) -> Any:
    """Return what completes the values of a command, without the module of the command."""
    found = CommandInfo(name=command, callback=_words, cls=PassingCommand)
    return get_command_from_info(found, pretty_exceptions_short=False, rich_markup_mode=None)
