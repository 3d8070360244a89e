"""How `slipway run` ends: the table, and an error unless all that was asked for is done; or why Snakemake did not begin."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

import typer

from base.apart import call_apart
from base.errors import Cancelled, ConfigError, Killed, LeaseError, RecordError, error_of_exit
from base.names import closest
from base.units import counted
from cluster.schedulers.jobs import RUN
from workflow.commands.before_runs import hindrances
from workflow.commands.ending import print_ending
from workflow.commands.snakemake_words import failed_rules, is_usage, what_it_said
from workflow.commands.watching import show
from workflow.dag.closing import after_failure, held_by_others, held_words
from workflow.dag.graph import Graph
from workflow.dag.storage_place import LOOK_S
from workflow.study.hints import key_of_option
from workflow.study.model import CellKeys
from workflow.study.next_command import command, completed

LOG_BYTES: Final = 1 << 20
UNKNOWN: Final = "unrecognized arguments: "
OURS: Final = frozenset(("--site", "--profile", "--retry", "--adopt", "--study"))


def end(graph: Graph, asked: Sequence[str], code: int, told: Sequence[int], log: Path, *, table: bool) -> None:
    """`asked`: the receipts of the runs to be made, by name. What Snakemake could not do, since another start had the run, is done when
    that one has done it: then the report is made from all records."""
    text = log_text(log)
    failed = failed_rules(text)
    if code and not told and not failed and (said := what_it_said(text)):
        refuse(text, code, said, f"; snakemake's log: {log}")
    unmet = graph.unmet(asked) if code and not told else []
    others_made_it = code > 0 and not told and not unmet and failed == [RUN]
    problem = after_failure(graph) if others_made_it else ""
    if table:
        with suppress(OSError) if told else nullcontext():  # after SIGHUP nobody may be there to read it
            print_ending(graph)
    if code and told:
        raise Cancelled(f"ended by {signal.Signals(told[0]).name}; snakemake's log: {log}")
    if code and unmet:
        _tell_unmet(graph, unmet, log)
    if code < 0:
        raise Killed(f"snakemake was ended by {signal.Signals(-code).name}; its log: {log}")
    if problem:
        raise RecordError(f"all runs have a result, but the report is not complete: {problem}")
    if code and not others_made_it:
        rules = ", ".join(failed) or f"snakemake (exit code {code})"
        raise RecordError(f"all runs have a result, but the report is not complete: {rules} failed; snakemake's log: {log}")


def _tell_unmet(graph: Graph, unmet: Sequence[str], log: Path) -> None:
    """Raise LeaseError where others have all of these runs, else RecordError."""
    study = graph.study
    held = held_by_others(graph, unmet)
    if len(held) == len(unmet):
        raise LeaseError(f"{held_words(held)}; when that has ended, the same command finds the result, or makes it; snakemake's log: {log}")
    for one in hindrances(study):
        show.prose(f"waits for {one.what}: {completed(one.reason, study.chosen_site, study.path)}", "    ")
    again = bool(set(unmet) - set(graph.without_result()))
    without = f"{counted(len(unmet), 'run has', 'runs have')} no {'new ' * again}result"
    raise RecordError(f"{without}; `{command(study, 'status')}` says why; snakemake's log: {log}")


def refuse(text: str, code: int, said: str, where: str) -> None:
    """Snakemake did not begin, by its own words. Raises what our Snakefile ended with, else ConfigError; BadParameter for an option that
    it does not know."""
    if is_usage(text):
        raise WrongUsage(usage_words(said, where))
    raise error_of_exit(code, ConfigError)(f"snakemake: {said}{where}")


class WrongUsage(typer.BadParameter):
    """What is wrong with an option, in a sentence of its own."""

    def format_message(self) -> str:
        """Without `Invalid value:`, since more was wrong than a value."""
        return self.message


def refuse_keys(options: Iterable[str]) -> None:
    """Raise WrongUsage for an option that is a key of the study."""
    for option in options:
        if (hint := key_of_option(option)) is not None:
            raise WrongUsage(f"{option}: {hint}")


def usage_words(said: str, where: str) -> str:
    """What is wrong with an option, by Snakemake's words."""
    if not said.startswith(UNKNOWN):
        return f"snakemake does not accept this: {said}{where}"
    words = [word for word in said.removeprefix(UNKNOWN).split() if word.startswith("-")] or [said.removeprefix(UNKNOWN)]
    from snakemake.cli import get_argument_parser

    known = {name for action in get_argument_parser()._actions for name in action.option_strings if name.startswith("--")}
    keys = {f"--{key}" for key in CellKeys.model_fields}  # refuse_keys() says where these are written
    near = [found for word in words if (found := closest(word.partition("=")[0], known | OURS | keys)) is not None]
    hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ";"
    return f"neither slipway run nor snakemake has the option {', '.join(words)}{hint} both --help texts list them"


def log_text(log: Path) -> str:
    """The end of Snakemake's log. Raises StorageError."""
    text: str = call_apart(f"snakemake's log {log}", end_of, str(log), timeout_s=LOOK_S)
    return text


def end_of(log: str) -> str:
    """Return the end of a log. It is called in a process of its own, because storage may hang."""
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return file.read().decode(errors="replace")
