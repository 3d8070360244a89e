"""Short questions to the server of any scheduler, by its commands, asked again while it is silent. What differs is a `Server`.

Everything here may wait up to `patience_s`: processes that must not, call it in a child with a time limit.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from base.command import CommandResult, describe, last_lines, run
from base.errors import NoScheduler, SchedulerOutputError, SchedulerSilent, SlipwayError
from base.sanitize import text

# Time limits of our questions to any scheduler, and of submissions that are not answered.


ANSWER_S: Final = 20.0
"""How long one command may take where nothing else is said: while their server is away, those of some schedulers wait for ever."""
QUICK_ANSWER_S: Final = 5.0
"""The same for what is of use only if it is known soon."""
PATIENCE_S: Final = 60.0
"""How long a server that is silent is asked again where nothing else is said."""
SHORT_PATIENCE_S: Final = 2.0
"""The same for what must be known now or not at all."""
DOCTOR_PATIENCE_S: Final = 5.0
"""How long the doctor asks a server that is silent again."""
STEP_S: Final = 40.0
"""How long the doctor's programs on all nodes may take."""
SUBMIT_S: Final = 120.0
"""How long one submission may take: one that is cut off may have submitted the job nevertheless."""

FIRST_PAUSE_S: Final = 0.5
"""The pause before a silent scheduler is asked again for the first time; each one after it is twice as long."""
LONGEST_PAUSE_S: Final = 15.0
"""The longest pause between two questions."""
SETTLE_S: Final = 3.0
"""How long a server that has just come back may answer questions before it has taken in a submission that came earlier."""
LEAST_S: Final = 10.0
"""For so long the job is looked for at least, also where the patience is over."""


def in_english(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: for a command whose words are read."""
    return {**environ, "LC_ALL": "C"}


@dataclass(frozen=True, kw_only=True)
class Server:
    """One scheduler's server, as its commands speak of it."""

    title: str
    """The scheduler's name in a sentence."""
    name: str
    """Who answers, in a sentence."""
    silence: tuple[str, ...]
    """What the commands say when it does not answer: it is restarted, busy, or cut off."""
    nowhere: tuple[str, ...]
    """What they say where no cluster is configured."""
    cluster: str
    """What this machine then does not have: `belongs to no cluster ...`."""
    advice: str
    """What to do about it."""
    nowhere_first: bool = False
    """Whether words of `nowhere` are no silence, even where words of `silence` stand beside them."""
    harmless: tuple[str, ...] = ()
    """A command that complains of nothing else has not failed."""
    refusals: tuple[tuple[str, str], ...] = ()
    """What to do about other words."""
    on_both: bool = False
    """Whether the commands say on standard output, too, why they fail: then three lines of both count, else two of standard error."""
    dull: tuple[str, ...] = ()
    """Lines that say nothing."""
    environment: Callable[[Mapping[str, str]], dict[str, str]] = in_english
    """Of ours that of a question."""
    path: Callable[[str], str] = str
    """Where a command lies."""


def ask(server: Server, argv: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> str:
    """The standard output of a question. While the server is silent it is asked again, with growing pauses, for `patience_s`.

    Raises SchedulerSilent then, SchedulerOutputError when the command itself fails, and NoScheduler where it never can be asked here.
    """
    result = asked(server, argv, patience_s, timeout_s)
    if result.returncode and not complains_only_of(result, server.harmless):
        raise refusal(server, result)
    return result.stdout


def asked(server: Server, argv: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> CommandResult:
    """The same, whatever its exit code. Raises SchedulerSilent; NoScheduler where the command is not here, SchedulerOutputError where it
    cannot be started."""
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
    """The result, and what sounds like silence. `env`: instead of that of a question. Raises `error_class` where it cannot be started."""
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


def pauses() -> Iterator[float]:
    """Pure: seconds between one question and the next."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


def silence_of(server: Server, result: CommandResult) -> str:
    """Pure: the words by which a command says that the server does not answer; "" where it does."""
    said = result.stderr
    if not result.returncode or (server.nowhere_first and _holds(said, server.nowhere)):
        return ""
    return last_words(server, result) if _holds(said, server.silence) else ""


def last_words(server: Server, result: CommandResult) -> str:
    """Pure: why a command failed, in one line of its own words."""
    said, count = (f"{result.stdout}\n{result.stderr}", 3) if server.on_both else (result.stderr, 2)
    lines = dict.fromkeys(line.strip() for line in last_lines(said, 2 * count).splitlines() if line.strip() not in server.dull)
    return text("; ".join([*lines][-count:])) or f"exit code {result.returncode}"


def refusal(server: Server, result: CommandResult) -> SchedulerOutputError:
    """Pure: what a command that failed ends with."""
    known = (*server.nowhere, *(words for words, _ in server.refusals))
    return (NoScheduler if _holds(result.stderr, known) else SchedulerOutputError)(refusal_words(server, result))


def refusal_words(server: Server, result: CommandResult) -> str:
    """Pure: what a command that failed means, and what to do."""
    if _holds(result.stderr, server.nowhere):
        return f"this machine {server.cluster} that `{result.argv[0]}` could ask ({last_words(server, result)}): {_what_to_do(server)}"
    advice = next((advice for words, advice in server.refusals if words in result.stderr), None)
    return describe(result) if advice is None else f"{last_words(server, result)}: {advice}"


def _what_to_do(server: Server) -> str:
    return f"{server.advice}, or choose a site with scheduler: local (`slipway doctor` says what is here)"


def complains_only_of(result: CommandResult, words: Sequence[str]) -> bool:
    """Pure: whether each line of its complaints has some of these words, and there are complaints."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return bool(lines) and all(_holds(line, words) for line in lines)


def _holds(said: str, words: Sequence[str]) -> bool:
    return any(word in said for word in words)


# Which environment variables a job takes along from the shell that submits it. A scheduler would take all of them: they would lie on its
# server's disk and in the environment of every process of the job, with the keys and passwords of that shell.
#
# So it gets what is named here, and nothing else: where things are, who and in which language, what modules, Python, the network
# libraries and the engines of containers read, and the options of Slurm's own commands. Lines of the site's `setup` set what is missing.


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
"""In a name that only its beginning lets through."""


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: of `environ`, what the scheduler gets and the job inherits."""
    return {name: value for name, value in environ.items() if name in NAMES or (name.startswith(PREFIXES) and not SECRET.search(name))}


def carried_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Pure: the same as names for `sbatch --export`, for a script that is submitted from a whole environment. Slurm's own go along anyway;
    functions have no name that it takes, and come from the login shell that Slurm starts for such a job."""
    return tuple(sorted(name for name in carried(environ) if name.isidentifier() and not name.startswith(("SLURM_", "SBATCH_"))))
