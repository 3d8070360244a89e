"""Run Snakemake for `slipway run STUDY`, with our Snakefile and profile, from any directory, and show what it does in words."""

import argparse
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from base import calls, logs, process, system
from base.errors import Cancelled, ConfigError, LeaseError, RecordError, SchedulerOutputError, StorageError, error_of_exit
from base.humanize import counted
from cluster import detection, installation, processes, storage_guard
from cluster.limits import SAME_INTERRUPT_S
from cluster.schedulers import jobs_of, shared_profile, with_jobs
from cluster.schedulers.jobs import RUN, QueuedJob
from workflow.commands.chosen_study import print_site
from workflow.commands.options import DEFAULT_STUDY, AdoptOption, PassingCommand, RetryOption, SiteOption, snakemake_config
from workflow.commands.snakemake_hooks import SHOWN, after_failure, describe_held, held_by_others, print_ending
from workflow.commands.watching import output
from workflow.commands.watching.live_table import DRAW_S, Refresher, View, open_view
from workflow.commands.watching.watch import Watch
from workflow.dag import cell_needs, execution, queue_view, refusals
from workflow.dag.graph import Graph
from workflow.run.record import events, step_clock
from workflow.study.cell import datasets_of
from workflow.study.next_command import command, completed
from workflow.study.series import words_of
from workflow.study.site import Site
from workflow.study.study import Study

# Snakemake as a child.


GRACE_S: Final = 60.0
"""The seconds in which Snakemake's runs end after an interrupt: their containers are stopped and their files are pushed."""
TO_LOG: Final = ("/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1')
"""The command that stands before the path of a log and a command. The log is on storage: the child opens it, since we must not wait for
that."""


class Child:
    """Snakemake as a child, started when the object is made, in a process group of its own.

    As a context manager it receives our signals, and `signals` has their numbers in order; nothing of it is left after the end.

    Ctrl-C goes to its whole group, as a terminal would send it: Snakemake waits for its runs, and they end by it; what a second one does is
    up to them. SIGHUP is as Ctrl-C, since Snakemake would end by it at once and leave its temporary directory. SIGTERM goes to Snakemake
    alone, which then starts nothing more and waits for what runs; a second one is as Ctrl-C.

    Python drops a KeyboardInterrupt that is raised in what it calls while it forks, or when it has imported a module. So our signals are
    noted before the fork, and Ctrl-C is blocked in Snakemake until SnakemakeHooks.of() unblocks it.
    """

    def __init__(self, argv: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self.signals: list[int] = []
        self._passed: dict[int, float] = {}
        self._early: list[int] = []
        heard = [number for number in storage_guard.ENDS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's choice stands
        self._handlers = {number: signal.signal(number, lambda number, _: self._early.append(number)) for number in heard}
        dies = process.dies_with_us()
        self._process = subprocess.Popen(
            [*TO_LOG, str(log), *argv],
            stdin=subprocess.DEVNULL,
            env=dict(environ),
            process_group=0,
            preexec_fn=lambda: (signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}), dies()),
        )
        self._descriptor = os.pidfd_open(self._process.pid)

    def __enter__(self) -> "Child":
        for number in self._handlers:
            signal.signal(number, self._signalled)
        for early in self._early:
            self._signalled(early, None)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            self._stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._descriptor)

    def wait(self, limit_s: float) -> int | None:
        """Wait for the end of the child, for `limit_s` at most, and return its exit code, negative for a signal."""
        select.select([self._descriptor], [], [], limit_s)
        return self._process.poll()

    def _stop(self) -> None:
        """Interrupt the child and wait for its end, since we leave first by a fault of ours: its runs end as by Ctrl-C, if they can."""
        os.killpg(self._process.pid, signal.SIGINT)
        if self.wait(GRACE_S) is None:
            self._process.kill()
        self._process.wait()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._process.poll() is not None or now - self._passed.get(number, -SAME_INTERRUPT_S) < SAME_INTERRUPT_S:
            return
        self._passed[number] = now
        first = number not in self.signals
        self.signals.append(number)
        if number == signal.SIGTERM and first:
            os.kill(self._process.pid, number)
        else:
            os.killpg(self._process.pid, signal.SIGINT)


# The reasons for which a study's runs cannot start.


def blockers(study: Study) -> list[dict[str, str]]:
    """Return the pinned images and datasets that are not there and whose last attempt failed: what, reason and log.

    All runs, or those of one dataset, wait for them. Only logs are read. A reason that several shards of a dataset have in common is there
    once, with the log of the first.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for what, log in _missing_inputs(study):
        if reason := events.last_error(log):
            found.setdefault((what, reason), {"what": what, "reason": reason, "log": str(log)})
    return list(found.values())


def _missing_inputs(study: Study) -> Iterator[tuple[str, Path]]:
    """Yield what is not there, with each log that may give the reason."""
    images = cell_needs.images_file(study)
    if images is not None and not Path(images).exists():
        yield "the images", study.results_dir / "logs" / Path(images).with_suffix(".log").name
    for name in datasets_of(run.cell for run in study.runs):
        build = study.build_dir(name)
        if not (build / "dataset.json").exists():
            yield from ((f"dataset {name}", log) for log in sorted((build / "logs").glob("*.log")))


# The words that were typed after `slipway run`.


LOOKS: Final = frozenset(
    (
        *("--dag", "--rulegraph", "--filegraph", "--list", "-l", "--list-rules", "--list-target-rules", "--lt", "--list-changes", "--lc"),
        *("--summary", "-S", "--detailed-summary", "-D", "--report", "--lint", "--archive", "--unlock", "--touch", "-t", "--version", "-v"),
        *("--cleanup-metadata", "--cm", "--delete-all-output", "--delete-temp-output", "--list-input-changes", "--li"),
        *("--list-params-changes", "--lp", "--list-untracked", "--lu", "--d3dag", "--print-compilation", "--generate-unit-tests"),
        *("--export-cwl", "--containerize", "--help", "-h"),
    )
)
"""Options with which Snakemake runs nothing: what it prints is what was asked for."""
FILE_OPTIONS: Final = ("--report", "--report-stylesheet", "--archive", "--export-cwl")
"""Options of Snakemake whose value is a file, which is relative to where the user is and not to the directory of the results."""
DRY_ALONE: Final = frozenset(("-n", "--dry-run", "--dryrun"))
DRY: Final = re.compile(r"--dry-?run$|-[hFDSaflkptv]*n")
"""Options with which Snakemake says what it would run; behind one dash may stand several of one letter that take no value."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The words of a command line, sorted into ours and Snakemake's.

    `study`: the file, where one was named. `config`: all of Snakemake's --config, our options that mean the same included; `rest`: for
    Snakemake, as they were typed.
    """

    study: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[str, ...] = ()

    @property
    def looks(self) -> bool:
        return any(word.partition("=")[0] in LOOKS for word in self.rest)

    @property
    def dry(self) -> bool:
        return any(DRY.match(word) for word in self.rest)

    def has(self, *names: str) -> bool:
        return any(word.partition("=")[0] in names for word in self.rest)


def parse_words(words: Sequence[str], ours: Mapping[str, str]) -> CommandLine:
    """Sort the words that were typed, without our own options. Raises ConfigError.

    `ours` has our options by the keys of --config that they mean.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", "-C", dest="pairs", nargs="*", action="extend", default=[])
    parser.add_argument("--configfile", "--configfiles", dest="studies", nargs="*", action="extend", default=[])
    for option in FILE_OPTIONS:
        parser.add_argument(option, nargs="?", const="report.html", dest=option)
    first = [word for word in words[:1] if not word.startswith("-")]
    known, rest = parser.parse_known_args(words[len(first) :])
    config: dict[str, str] = {}
    for pair in (*known.pairs, *(f"{key}={value}" for key, value in ours.items())):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--config {pair}: found {pair!r}, valid: KEY=VALUE, such as retry=failed")
        if config.setdefault(key, value) != value:
            raise ConfigError(f"{key} was given twice, as {config[key]!r} and as {value!r}; leave one of them out")
    studies = [*first, *known.studies]
    more = [word for word in rest if word.endswith((".yaml", ".yml")) and not word.startswith("-")]
    if len(studies) + len(more) > 1:
        raise ConfigError(f"one study at a time; found {len(studies) + len(more)}: {', '.join((*studies, *more))}")
    if more:
        raise ConfigError(f"the study comes first: slipway run {more[0]} ..., then the options for Snakemake")
    files = [f"{option}={Path(file).absolute()}" for option in FILE_OPTIONS if (file := getattr(known, option)) is not None]
    return CommandLine(study=studies[0] if studies else None, config=config, rest=(*rest, *files))


# Snakemake's command line, and its output when it failed.


_ENDED: Final = re.compile(r"^(?:snakemake|\S+: error): (.+)$", re.MULTILINE)
"""The last line of our Snakefile's own errors, and of Snakemake's about an option."""
_IN_RULE: Final = re.compile(r"^Error in rule (\w+):$", re.MULTILINE)
USAGE: Final = 2
"""Snakemake's exit code where it refuses an option."""
A_JOB_FAILED: Final = "At least one job did not complete successfully."


def profile_name(site: Site, environ: Mapping[str, str]) -> str:
    """Return the name of the profile that fits the site and the environment."""
    is_shared = site.scheduler in with_jobs() and detection.scheduler_of(environ) == site.scheduler
    return shared_profile(site.scheduler) if is_shared else site.scheduler


def profile_path(name: str) -> str:
    """Return the profile that Snakemake is given: one of ours by its name, or the user's own as it is. Raises ConfigError."""
    own = installation.PROFILES / name
    if "/" not in name and own.is_dir():
        return str(own)
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.absolute())
    known = ", ".join(sorted(entry.name for entry in installation.PROFILES.iterdir() if entry.is_dir()))
    raise ConfigError(
        f"--profile {name}: no profile of that name, and no directory; valid: {known}, or the path of a directory of your own"
    )


def profile_way(path: str) -> execution.Way | None:
    """Return how one of our profiles makes runs, or None for the user's own."""
    name = Path(path).name
    if Path(path).parent != installation.PROFILES:
        return None
    return "jobs" if name in with_jobs() else "allocation" if name in map(shared_profile, with_jobs()) else "local"


def child_argv(profile: str, study: Path, directory: Path, words: CommandLine, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Build the whole command of the child, which works in `directory`, whatever ours is."""
    many = [] if words.has("--directory", "-d") else ["--directory", str(directory)]
    shared = next((name for name in with_jobs() if Path(profile).name == shared_profile(name)), "")
    jobs = None if words.has("--resources", "--res") else jobs_of(shared)
    count = None if jobs is None else jobs.num_nodes_of_job(environ)
    if count is not None:
        many += ["--resources", f"{execution.NODES}={count}"]
    rest = [*words.rest]
    if f"--report={directory.absolute() / 'report.html'}" in rest:
        raise ConfigError("--report: that is the report of the study itself, which Snakemake's would replace; name another file")
    if words.config:
        rest += ["--config", *(f"{key}={value}" for key, value in words.config.items())]
    return execution.snakemake_argv(profile, study, many, rest)


def snakemake_error(log: str) -> str:
    """Return the sentence with which our Snakefile, or Snakemake over an option, ended; else the end of the log's last paragraph."""
    sentences = _ENDED.findall(log)
    return str(sentences[-1]) if sentences else "\n".join(log.strip().rpartition("\n\n")[2].splitlines()[-5:])


def failed_rules(log: str) -> list[str]:
    """Return the rules of which a job failed, each once."""
    return list(dict.fromkeys(_IN_RULE.findall(log)))


# The end of `slipway run`.


def end(graph: Graph, requested: Sequence[str], code: int, signals: Sequence[int], log: Path, *, table: bool) -> None:
    """End the command with the table, and with an error unless all that was requested is done.

    `requested`: the results to be made, by name. What Snakemake could not do, since another start had the run, is done when that
    one has done it: then the report is made from all records.
    """
    text = log_text(log)
    failed = failed_rules(text)
    if code > 0 and not signals and not failed and A_JOB_FAILED not in text:
        refuse(code, f"{snakemake_error(text)}; snakemake's log: {log}")
    unmet = graph.unmet(requested) if code and not signals else []
    others_made_it = code > 0 and not signals and not unmet and failed == [RUN]
    problem = after_failure(graph) if others_made_it else ""
    if table:
        with suppress(OSError) if signals else nullcontext():  # after SIGHUP nobody may be there to read it
            output.notice("snakemake has ended; the table is made from the records")
            print_ending(graph)
    if code and signals:
        raise Cancelled(f"ended by {signal.Signals(signals[0]).name}; snakemake's log: {log}")
    if code and unmet:
        _raise_unmet(graph, unmet, log)
    if problem:
        raise RecordError(f"all runs have a result, but the report is not complete: {problem}")
    if code and not others_made_it:
        rules = ", ".join(failed) or f"snakemake (exit code {code})"
        mend = f"`{command(graph.study, 'report')}` makes it, or says what is in the way"
        raise RecordError(f"all runs have a result, but the report is not complete: {rules} failed; {mend}; snakemake's log: {log}")


def _raise_unmet(graph: Graph, unmet: Sequence[str], log: Path) -> None:
    """Raise LeaseError where others have all of these runs, else RecordError."""
    study = graph.study
    held = held_by_others(graph, unmet)
    if len(held) == len(unmet):
        who = describe_held(held)
        raise LeaseError(f"{who}; when that has ended, the same command finds the result, or makes it; snakemake's log: {log}")
    for one in blockers(study):
        output.prose(f"waits for {one['what']}: {completed(one['reason'], study.chosen_site, study.path)}", "    ")
    again = bool(set(unmet) - set(graph.without_result()))
    without = f"{counted(len(unmet), 'run has', 'runs have')} no {'new ' * again}result"
    raise RecordError(f"{without}; `{command(study, 'status')}` says why; snakemake's log: {log}")


def refuse(code: int, message: str) -> None:
    """Raise the reason for which Snakemake did not begin: what our Snakefile ended with, else ConfigError; WrongUsage for an option."""
    if code == USAGE:
        raise WrongUsage(f"snakemake does not accept this: {message}")
    raise error_of_exit(code, ConfigError)(f"snakemake: {message}")


class WrongUsage(typer.BadParameter):
    """A wrong use of an option, explained in a sentence of its own."""

    def format_message(self) -> str:
        """Return the message without `Invalid value:`, since more was wrong than a value."""
        return self.message


def log_text(log: Path) -> str:
    """Read the end of Snakemake's log. Raises StorageError."""
    text: str = calls.call_isolated(f"snakemake's log {log}", events.end_of_log, str(log), timeout_s=refusals.LOOK_S)
    return text


COMMAND_CLASS: Final = PassingCommand


def main(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STUDY] [SNAKEMAKE_OPTION]...", help="The study file, then any of Snakemake's options: -n, --cores 8, -k."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="One of ours (docs/reference/commands.md), or a directory; default: what fits the site.")
    ] = None,
    site: SiteOption = None,
    retry: RetryOption = None,
    adopt: AdoptOption = False,
) -> None:
    """Run what has no result yet, from any directory, and show the speed-up table at the end.

    STUDY comes first. All options that Slipway does not know go to Snakemake unchanged: `-n`, `--cores 8`, `-k`, targets. `-n` alone
    says in words which runs would start; with other options, as options that only look (`--report FILE`, `--summary`, `--unlock`), it
    prints Snakemake's own output. It writes nothing. `--config KEY=VALUE` may stand several times; `site=` and `retry=` mean `--site`
    and `--retry`.

    A terminal shows a table of the runs; a pipe gets a line at least every 10 s. These go to standard error, the table at the end
    to standard output. Snakemake's output goes to the log that the first line names, and its files lie in
    `<storage>/results/<study>/.snakemake`.

    Ctrl-C ends the runs cleanly; the same command continues. `kill` lets running runs end and starts no more. A lost terminal or
    `kill -9` ends the runs on this machine; jobs of a scheduler go on.

    Exit code 0: every run has a result, failed ones included. 2: Snakemake refused an option. 19: some runs have no result. 21: another
    start, which the message names, works on the runs that are left. 26: a signal ended it.
    """
    run_study(words or [], snakemake_config(site, retry, adopt), profile)


def run_study(words: Sequence[str], ours: Mapping[str, str], profile: str | None = None, *, table: bool = True) -> None:
    """Run the study. Raises the error that the study, or its end, has.

    `ours`: our options by the keys of --config that they mean; `table`: whether it ends with the speed-up table.
    """
    system.refuse_without_home(os.environ)
    sorted_words = parse_words(words, ours)
    study = Path(sorted_words.study) if sorted_words.study is not None else DEFAULT_STUDY
    starts = not (sorted_words.dry or sorted_words.looks or profile)
    graph = refusals.load_graph(sorted_words.config, [study], installation.FILES, os.environ, tell=print_site, ask_scheduler=starts)
    site = graph.study.site
    logs.private_umask(group=graph.shared_by_group)
    path = profile_path(profile or profile_name(site, os.environ))
    if (way := profile_way(path)) is not None:
        execution.refuse_wrong_way(site, way, os.environ)
    if graph.study.chosen_site is not None:
        sorted_words = CommandLine(study=None, config={**sorted_words.config, "site": graph.study.chosen_site}, rest=sorted_words.rest)
    if sorted_words.dry and not sorted_words.looks:
        if DRY_ALONE.issuperset(sorted_words.rest):
            _print_runs_to_make(graph)
            return
        with tempfile.TemporaryDirectory(prefix="slipway-") as place:
            argv = child_argv(path, study, Path(place), sorted_words, os.environ)
            sys.exit(subprocess.run(argv, env={**os.environ, **process.packages_environ(os.environ)}, check=False).returncode)
    argv = child_argv(path, study, graph.study.results_dir, sorted_words, os.environ)
    if sorted_words.looks:
        os.execve(argv[0], argv, {**os.environ, **process.packages_environ(os.environ)})
    if profile is not None:  # only now is it known to fit the site
        refusals.refuse_unreachable(site, os.environ)
    _run(graph, argv, table=table)


def _run(graph: Graph, argv: Sequence[str], *, table: bool) -> None:
    """Run Snakemake and end the command."""
    study = graph.study
    name = study.site.scheduler
    own_jobs = jobs_of(name) if detection.scheduler_of(os.environ) != name else None
    log = study.results_dir / "logs" / f"snakemake-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    calls.call_limited(f"the results of {study.name}", _make_log, log, study, timeout_s=refusals.LOOK_S)
    queue = None if own_jobs is None else queue_view.poll_queue(name, own_jobs)
    watch = Watch(study=study, requested=graph.requested, queue=queue)
    sys.stdout.flush()
    with open_view() as view:
        view.print(f"{study.name}: {counted(len(watch.requested), 'run')} to do of {len(study.runs)}; snakemake's log: {log}")
        view.print(f"results: {study.results_dir} (site {study.site_words})")
        login = step_clock.with_login(os.environ, processes.age_s(os.getpid()))
        with Child(argv, log, {**os.environ, **process.packages_environ(os.environ), **login, SHOWN: "1"}) as child:
            code, jobs = _follow(child, Refresher(watch.look), view, watch)
            signals = list(child.signals)
        view.clear()
        if queue is not None:
            queue.stop()
        if own_jobs is not None and jobs and (set(signals) != {signal.SIGTERM} or len(signals) > 1):
            left = None
            with suppress(SchedulerOutputError):
                left = own_jobs.our_jobs(0.0, queue_view.QUEUE_S)
            view.print(queue_view.describe_cancelled(own_jobs, jobs, left))
    end(graph, watch.requested, code, signals, log, table=table)


def _make_log(log: Path, study: Study) -> None:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.open("xb").close()
    except OSError as error:
        raise StorageError(
            f"the results of {study.name} cannot be written: {error.filename}: {error.strerror} (site {study.site_words})"
        ) from error


def _follow(child: Child, refresher: Refresher, view: View, watch: Watch) -> tuple[int, tuple[QueuedJob, ...]]:
    """Show the study until Snakemake ends. Return its exit code, and the jobs that it had in the queue when it was told to end."""
    shown = 0
    jobs: tuple[QueuedJob, ...] = ()
    while (code := child.wait(DRAW_S)) is None:
        for number in child.signals[shown:]:
            jobs = jobs or watch.jobs()
            view.print(_signal_text(number, again=number in child.signals[:shown]))
            shown += 1
        refresher.draw(view, ending=bool(child.signals))
    refresher.stop(view)
    return code, jobs


def _signal_text(number: int, *, again: bool) -> str:
    if number == signal.SIGTERM and not again:
        return "told to end: runs at work are finished, no more are started; a second SIGTERM, or Ctrl-C, ends the runs too"
    return f"{signal.Signals(number).name}: the runs are ended, which may take half a minute"


def _print_runs_to_make(graph: Graph) -> None:
    study, runs = graph.study, graph.runs_to_make
    words = words_of(study.cells, study.site, study.repeats)
    output.line(f"{study.name}: {counted(len(runs), 'run')} of {len(study.runs)} would run")
    for run in runs:
        output.line(f"  {words(run)}  ({run.run_id})")
    output.line(f"{command(study, 'plan')} says what they need and cost")
