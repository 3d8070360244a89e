"""Load the study that a command was given, name its site where nobody chose one, and find the results directories that it works on."""

import errno
import hashlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from base import errors, jsonfile, logs
from workflow.commands.watching.watch import run_states
from workflow.dag.refusals import refuse_missing_report, refuse_unreadable_storage
from workflow.study import next_command, paths, publishing, site_file
from workflow.study.study import Study, load_study


def load_chosen_study(path: Path, site: str | None) -> Study:
    """Load the study; say first of all which site it is where that is the file beside the study."""
    study = load_study(path, site, os.environ)
    print_site(study)
    return study


def whole_commands(message: str, options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> str:
    """Complete the commands that `message` proposes. `options`: of the command that prints it."""
    typed = [word for word in options.get("words") or () if word.endswith((".yaml", ".yml"))][:1]
    typed += [str(place) for place in options.get("places") or () if place.suffix in (".yaml", ".yml")]
    study = Path(typed[0]) if typed else options.get("study")
    try:
        study = study if study is not None and study.is_file() else None  # a file that is not there is no part of an answer
        beside = None if study is None else site_file.site_beside(study, options.get("site"), environ)
    except (OSError, errors.ConfigError):  # it is what the message is about
        return message
    try:
        site = site_file.chosen_site(options.get("site"), environ) if beside is None else str(beside.absolute())
    except ValueError:  # what was typed is not a path
        return message
    return next_command.completed(message, site, study)


def print_site(study: Study) -> None:
    """Name the site on standard error, since standard output may be a document."""
    if study.site_beside is not None:
        sys.stderr.write(f"site: {logs.printable(str(study.site_beside))}, beside the study\n")


# Find the results directories that a command works on, and check what must be there before tables are made.


logger = logging.getLogger(__name__)
NOT_OURS: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


def _study_or_directories(study: Path, places: Sequence[Path]) -> tuple[Path, list[Path]]:
    """Sort what was typed without an option: the study file instead of `study`, or results directories.

    Raises ConfigError for both at once.
    """
    files = [place for place in places if place.suffix in (".yaml", ".yml") and not place.is_dir()]
    if not files:
        return study, list(places)
    if len(places) > 1:
        raise errors.ConfigError(f"found {' and '.join(map(str, places))}; valid: one study file, or results directories")
    return files[0], []


def results_as_they_are(study_path: Path, site: str | None, places: Sequence[Path]) -> list[Path]:
    """Return the results directories, else that of the study, which may be among `places`; nothing is written."""
    study_path, directories = _study_or_directories(study_path, places)
    if directories:
        return directories
    study = _with_results(load_chosen_study(study_path, site))
    _warn_of_edits(study)
    return [study.results_dir]


def results_dirs(study_path: Path, site: str | None, places: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Return the results directories to write tables into, or of which tables are written into `out`.

    The study's study.json is brought up to date. Who writes elsewhere need not be one who may write there.
    """
    study_path, directories = _study_or_directories(study_path, places)
    if directories:
        logs.private_umask(group=site_file.load_site(site).shared == "group")
        return list(directories)
    study = _with_results(load_chosen_study(study_path, site))
    logs.private_umask(group=study.site.shared == "group")
    try:
        if not refresh(study):
            _warn_of_edits(study)
    except OSError as error:
        if out is None or error.errno not in NOT_OURS:
            raise
        logger.warning("%s: %s; tables show the study as it was when it last ran there", study.results_dir, error.strerror)
    return [study.results_dir]


def no_results(study: Study) -> str:
    """Return what to say of a study that nobody has run on this site."""
    return f"no results of this study at the storage of site {study.site_words}: {study.results_dir} is not there"


def _with_results(study: Study) -> Study:
    """Return `study`, if it has results.

    Raises RecordError where it was never run: who only reads makes no directory for it; ConfigError where what is there are the results
    of another file of the same name.
    """
    refuse_unreadable_storage(study)
    if not study.results_dir.exists():
        raise errors.RecordError(f"{no_results(study)}; `{next_command.command(study)}` runs it; another site: --site NAME_OR_PATH")
    publishing.refuse_results_of_others(study)
    return study


def _warn_of_edits(study: Study) -> None:
    """Warn where the file asks for something else than what study.json has, of which tables are made.

    It is not on standard output, which may be for a program.
    """
    try:
        last = jsonfile.read_json(study.results_dir / paths.STUDY_FILE)["history"][-1]
        digest, when = str(last["sha256"]), str(last["time"])
        mine = publishing.origin_of(study, adopt=False, runs=False)
        if all(last.get(key) == mine[key] for key in ("file_sha256", "cells_sha256")):
            return  # the same file elsewhere, as in a project that was moved or copied: paths of its site differ
    except (errors.RecordError, LookupError, TypeError, AttributeError):
        return  # there is none, or one that says so itself
    if hashlib.sha256(jsonfile.canonical_json(publishing.resolved_study(study))).hexdigest() != digest:
        sys.stderr.write(
            logs.printable(
                f"slipway: {study.path} was edited: what is shown are the cells and the baseline as of {when}; "
                f"`{next_command.command(study)}` runs what is new in it"
            )
            + "\n"
        )


def refresh(study: Study) -> bool:
    """Publish study.json as the study file is now; whether it changed. While a run goes on, supervisors read the one that is there.
    Its owner stays, since nothing runs."""
    there = (study.results_dir / paths.STUDY_FILE).exists()
    if there and any(state.state == "running" for state in run_states(study)):
        return False
    return publishing.publish_resolved(study, runs=False)


def report_outputs() -> ModuleType:
    """Import the report's module. Raises UnsupportedRequest where its libraries are not installed, as on compute nodes."""
    refuse_missing_report()
    from workflow.report import outputs

    return outputs
