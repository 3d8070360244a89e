"""Query the server of any scheduler by its commands, repeated while it is silent, and submit a job to it exactly once.

A `Server` holds what differs between schedulers. Every function may wait up to `patience_s`: a process that must not wait calls it in a
child process with a time limit. A submission without an answer may have been accepted: the job is looked for before another try. Without
that, two jobs ran.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from base.errors import NoScheduler, SchedulerOutputError, SchedulerSilent, SlipwayError, SubmitError, SubmitUnsure
from base.process import CommandResult, describe, last_lines, run
from base.sanitize import printable, text
from cluster.schedulers.jobs import QueuedJob

# Time limits of queries and submissions.


ANSWER_S: Final = 20.0
"""The time limit of one command. The commands of some schedulers wait for ever while their server is away."""
QUICK_ANSWER_S: Final = 5.0
"""The time limit of a query whose answer is useful only at once."""
PATIENCE_S: Final = 60.0
"""How long a query is repeated while the server is silent."""
SHORT_PATIENCE_S: Final = 2.0
"""How long a query is repeated if its answer is needed now or not at all."""
SUBMIT_S: Final = 120.0
"""The time limit of one submission. A submission that is cut off may have created the job."""

FIRST_PAUSE_S: Final = 0.5
"""The pause before the first repetition of a query; each further pause is twice as long."""
LONGEST_PAUSE_S: Final = 15.0
"""The longest pause between two queries."""
SETTLE_S: Final = 3.0
"""The time in which a restarted server may answer queries before it has processed an earlier submission."""
MIN_S: Final = 10.0
"""The shortest time for which a job is looked for, even when the patience is over."""


# Environment variables that a job inherits. Without this list the keys and passwords of the submitting shell would lie on the scheduler's
# disk and in every process of the job. Lines of the site's `setup` set what is missing.


_NAMED: Final = """
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR LD_LIBRARY_PATH LD_PRELOAD BASH_ENV KRB5CCNAME SSL_CERT_FILE SSL_CERT_DIR
PYTHONPATH PYTHONSAFEPATH VIRTUAL_ENV CONDA_PREFIX CUDA_HOME
MODULEPATH MODULESHOME MODULES_CMD LOADEDMODULES _LMFILES_ BASH_FUNC_module%% BASH_FUNC_ml%%
DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG CONTAINER_HOST REGISTRY_AUTH_FILE APPTAINER_CACHEDIR APPTAINER_TMPDIR APPTAINER_CONFIGDIR
ENROOT_LIBRARY_PATH ENROOT_SYSCONF_PATH
"""
NAMES: Final = frozenset(_NAMED.split())
_NETWORK: Final = ("NCCL_", "GLOO_", "UCX_", "FI_")
PREFIXES: Final = ("LC_", "XDG_", "LMOD_", "__LMOD", "_ModuleTable", "__MODULES_", *_NETWORK, "SLIPWAY_", "SLURM_", "SBATCH_")
SECRET: Final = re.compile(r"TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIAL|API_?KEY", re.IGNORECASE)
"""Secret words in a name that is allowed only because of its prefix."""


def inherited_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Select the variables that the scheduler gets and the job inherits."""
    return {name: value for name, value in environ.items() if name in NAMES or (name.startswith(PREFIXES) and not SECRET.search(name))}


def in_english(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a command whose messages are read in English."""
    return {**environ, "LC_ALL": "C"}


@dataclass(frozen=True, kw_only=True)
class Server:
    """One scheduler's server, described by its commands and by what they print."""

    title: str
    """The scheduler's name as it stands in a sentence."""
    name: str
    """The server's name as it stands in a sentence."""
    submit: tuple[str, ...]
    """The command that reads a batch script and prints the job's id."""
    job_id: str
    """A pattern with multiple lines, whose first group is that id."""
    list: str
    """The command that lists our jobs."""
    show: str
    """The command that shows the jobs whose ids follow it."""
    cancel: str
    """The command that cancels the jobs whose ids follow it."""
    enter: str = ""
    """The words before a command that give it this terminal on `{node}` of the running job `{job}`; empty if there are none."""
    silence: tuple[str, ...]
    """Messages of the commands while the server is silent: it is being restarted, busy, or cut off."""
    nowhere: tuple[str, ...]
    """Messages of the commands where no cluster is configured."""
    cluster: str
    """The words about a machine without a cluster: `belongs to no cluster ...`."""
    advice: str
    """The advice for a machine without a cluster."""
    nowhere_first: bool = False
    """True if a message of `nowhere` counts even when a message of `silence` stands beside it."""
    harmless: tuple[str, ...] = ()
    """Complaints that do not make a command fail if there are no others."""
    refusals: tuple[tuple[str, str], ...] = ()
    """Pairs of another message and the advice for it."""
    on_both: bool = False
    """True if the commands print errors on standard output, too.

    The message then has three lines of both streams, else two of standard error.
    """
    dull: tuple[str, ...] = ()
    """Lines of output that carry no information."""
    environment: Callable[[Mapping[str, str]], dict[str, str]] = in_english
    """The function that makes a query's environment of ours."""
    submission: Callable[[Mapping[str, str]], dict[str, str]] = inherited_environ
    """The function that makes the environment of a submission, most of which the job inherits."""
    path: Callable[[str], str] = str
    """The function that returns the path of a command."""


def ask(server: Server, argv: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> str:
    """Return the standard output of a query, and repeat the query for `patience_s` while the server is silent.

    Raises SchedulerSilent when the time is over, SchedulerOutputError if the command itself fails, and NoScheduler if the command cannot
    work on this machine.
    """
    result = query(server, argv, patience_s, timeout_s)
    if result.returncode and not complains_only_of(result, server.harmless):
        raise refusal(server, result)
    return result.stdout


def query(server: Server, argv: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> CommandResult:
    """Return the result of a query, whatever its exit code.
    Raises SchedulerSilent, NoScheduler if the command is missing, and SchedulerOutputError if it cannot be started."""
    give_up = time.monotonic() + patience_s
    for pause in pauses():
        result, silence = one_try(server, argv, timeout_s)
        if result is not None and not silence:
            return result
        if time.monotonic() + pause > give_up:
            raise SchedulerSilent(f"{server.name} does not answer `{shlex.join(argv)}`, asked for {patience_s:g} s: {silence}")
        time.sleep(pause)
    raise AssertionError("pauses() has no end")


def one_try(
    server: Server,
    argv: Sequence[str],
    timeout_s: float,
    stdin: str = "",
    error_class: type[SlipwayError] = SchedulerOutputError,
    env: Mapping[str, str] | None = None,
) -> tuple[CommandResult | None, str]:
    """Run a command once, and return its result and the words that sound like silence.

    `env` replaces the environment of a query. Raises `error_class` if the command cannot be started.
    """
    try:
        env = server.environment(os.environ) if env is None else env
        result = run((server.path(argv[0]), *argv[1:]), timeout_s=timeout_s, env=env, stdin=stdin)
    except SlipwayError as error:
        if isinstance(error.__cause__, subprocess.TimeoutExpired):
            return None, f"no answer within {timeout_s:g} s"
        if isinstance(error.__cause__, FileNotFoundError) and error_class is SchedulerOutputError:
            raise NoScheduler(f"{server.title} has no command `{argv[0]}` on this machine: {_what_to_do(server)}") from error
        raise error_class(str(error)) from error
    return result, silence_of(server, result)


def version_of(server: Server, argv: Sequence[str]) -> str | None:
    """Return the version that a command prints, such as `22.05.8`, or None if it cannot be used here."""
    try:
        result, _ = one_try(server, argv, ANSWER_S)
    except SlipwayError:
        return None
    match = None if result is None or result.returncode else re.search(r"\b\d+(\.\d+)+\S*", f"{result.stdout}\n{result.stderr}")
    return None if match is None else match[0]


def pauses() -> Iterator[float]:
    """Yield the seconds to wait between one query and the next."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


def silence_of(server: Server, result: CommandResult) -> str:
    """Return the words by which a command reports that the server is silent, or an empty string."""
    output = result.stderr
    if not result.returncode or (server.nowhere_first and _holds(output, server.nowhere)):
        return ""
    return last_words(server, result) if _holds(output, server.silence) else ""


def last_words(server: Server, result: CommandResult) -> str:
    """Return the reason why a command failed, in one line of its own words."""
    output, count = (f"{result.stdout}\n{result.stderr}", 3) if server.on_both else (result.stderr, 2)
    lines = dict.fromkeys(line.strip() for line in last_lines(output, 2 * count).splitlines() if line.strip() not in server.dull)
    return text("; ".join([*lines][-count:])) or f"exit code {result.returncode}"


def refusal(server: Server, result: CommandResult) -> SchedulerOutputError:
    """Build the error for a command that failed."""
    known = (*server.nowhere, *(words for words, _ in server.refusals))
    return (NoScheduler if _holds(result.stderr, known) else SchedulerOutputError)(refusal_words(server, result))


def refusal_words(server: Server, result: CommandResult) -> str:
    """Explain the failure of a command, and what to do."""
    if _holds(result.stderr, server.nowhere):
        return f"this machine {server.cluster} that `{result.argv[0]}` could ask ({last_words(server, result)}): {_what_to_do(server)}"
    advice = next((advice for words, advice in server.refusals if words in result.stderr), None)
    return describe(result) if advice is None else f"{last_words(server, result)}: {advice}"


def _what_to_do(server: Server) -> str:
    return f"{server.advice}, or choose a site with scheduler: local"


def complains_only_of(result: CommandResult, words: Sequence[str]) -> bool:
    """Return True if there are complaints, and each line of them contains one of these words."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return bool(lines) and all(_holds(line, words) for line in lines)


def _holds(output: str, words: Sequence[str]) -> bool:
    return any(word in output for word in words)


# One job for one submission.


def submit_script(
    server: Server,
    name: str,
    script: str,
    jobs_named: Callable[[str, float], Sequence[QueuedJob]],
    patience_s: float,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """Submit the script of the job of that name exactly once, and return its id, which is found by the name if the command gives none.

    While nobody answers, the submission is repeated for `patience_s`, which may be infinite; a message says so once. Raises SubmitError.
    """
    command = server.submit[0]
    give_up, is_reported = time.monotonic() + patience_s, False
    for pause in pauses():
        result, silence = one_try(server, server.submit, SUBMIT_S, script, SubmitError, server.submission(os.environ))
        if result is not None and not silence:
            return parse_job_id(server, result)
        if not is_reported:
            line = f"slipway: {command} got no answer ({silence}); looking whether the job is in the queue before another try"
            sys.stderr.write(f"{printable(line)}\n")
            sys.stderr.flush()
            is_reported = True
        try:
            found = jobs_named(name, max(MIN_S, give_up - time.monotonic()))
            if not found:  # the server may process the submission only after that query
                wait(SETTLE_S)
                found = jobs_named(name, max(MIN_S, give_up - time.monotonic()))
        except SchedulerOutputError as error:
            raise SubmitUnsure(
                f"it is not known whether {server.name} accepted job {name}: {command} and the query for the job got no answer; "
                f"when it is back, look with `{server.list}`, and end what is not wanted with {server.cancel}: {error}"
            ) from error
        if found:
            return found[-1].job_id
        if time.monotonic() + pause > give_up:
            raise SubmitError(
                f"{server.name} does not answer {command}, tried for {patience_s:g} s, and job {name} is not in the queue: {silence}; "
                f"wait until `{server.list}` answers, then submit again"
            )
        wait(pause)
    raise AssertionError("pauses() has no end")


def parse_job_id(server: Server, result: CommandResult) -> str:
    """Parse the answer to a submission. Raises SubmitError for a refusal, and SubmitUnsure for an answer without an id."""
    if result.returncode:
        raise SubmitError(f"{server.title} refused the job: {last_words(server, result)}\n{refusal_words(server, result)}")
    found = [match[1] for match in re.finditer(server.job_id, result.stdout, re.MULTILINE)]
    if not found:
        raise SubmitUnsure(f"{result.argv[0]} ended well and named no job: {result.stdout[-400:]!r}; {describe(result)}")
    return str(found[-1])  # before it the shell may have said something
