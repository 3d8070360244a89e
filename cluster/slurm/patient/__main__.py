"""`python -m cluster.slurm.patient COMMAND ARGUMENT...`: what the stand-ins in bin/ run. Calls that are not the plugin's go to Slurm."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from base.publish import publish
from base.storage_clock import now_at
from cluster.slurm.patient import ACCOUNT, MAIN_PID, STATE, job_environ, plain_path
from cluster.slurm.patient.answers import is_status_query, option, with_ended, with_long_memory
from cluster.slurm.query import ask
from cluster.slurm.submit import Call, find_by_comment, submit_once

COPY: Final = "scontrol-config.txt"
COPY_AGE_S: Final = 600.0
QUESTION_S: Final = 30.0
TRY_S: Final = 12.0
"""The plugin gives squeue 60 s, scancel 60 s and `scontrol show config` 5 s; a question may begin a last try just before its end."""
SUBMIT_S: Final = 3600.0
CONFIG_TIMEOUT_S: Final = 4.0


def main(argv: Sequence[str]) -> int:
    """The exit code of the command `argv[0]` with its arguments."""
    for_jobs = job_environ(os.environ)
    os.environ["PATH"] = plain_path(os.environ.get("PATH", ""))
    answer = ANSWERS.get(argv[0])
    if answer is not None and argv[0] == "sbatch":
        return _sbatch(argv, for_jobs)
    return _pass_on(argv) if answer is None else answer(argv)


def _pass_on(argv: Sequence[str]) -> int:
    real = shutil.which(argv[0])
    if real is None:
        sys.stderr.write(f"{argv[0]}: command not found\n")
        return 127
    os.execv(real, list(argv))
    raise AssertionError("execv does not return")


def _squeue(argv: Sequence[str]) -> int:
    """The plugin's question for the states of its jobs. No answer yet means: nothing new, which is no failure."""
    if not is_status_query(argv):
        return _pass_on(argv)
    try:
        text = ask(argv, QUESTION_S, TRY_S)
    except SchedulerSilent:
        _say("slurmctld does not answer; the jobs are waited for")
        return 0
    except SchedulerOutputError as error:
        _say(f"squeue says nothing of the jobs now; they are waited for: {error}")
        return 0
    jobs = _state() / f"{option(argv, '--name')}.jobs"
    submitted = jobs.read_text().splitlines() if jobs.exists() else []
    sys.stdout.write(with_ended(text, submitted, time.time()))
    return 0


def _sbatch(argv: Sequence[str], environ: dict[str, str]) -> int:
    """One job for one call, found again by its comment where sbatch itself got no answer."""
    name, comment = option(argv, "--job-name"), option(argv, "--comment")
    if name is None or comment is None:
        return _pass_on(argv)
    mark = f"{comment} slipway-{secrets.token_hex(6)}"
    place = list(argv).index("--comment") + 1
    marked = [*argv[:place], mark, *argv[place + 1 :]]
    try:
        call = Call(argv=tuple(marked), env=environ)
        job_id = submit_once(call, lambda patience: find_by_comment(name, mark, patience), SUBMIT_S, _say)
    except SlipwayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with (_state() / f"{name}.jobs").open("a") as jobs:
        jobs.write(f"{job_id} {time.time():.0f}\n")
    sys.stdout.write(f"{job_id}\n")
    return 0


def _scontrol(argv: Sequence[str]) -> int:
    """`scontrol show config` from a copy, made anew now and then while the controller answers, and there is room for it."""
    if list(argv[1:]) != ["show", "config"]:
        return _pass_on(argv)
    copy, fresh = _state() / COPY, None
    try:
        if not copy.exists() or now_at(copy.parent) - copy.stat().st_mtime > COPY_AGE_S:
            fresh = ask(argv, 0.0, CONFIG_TIMEOUT_S)
            publish(copy, fresh.encode())
    except (SchedulerOutputError, OSError) as error:  # a full quota too: what is known is told nevertheless
        if fresh is None and not copy.exists():
            sys.stderr.write(f"{error}\n")
            return 1
    sys.stdout.write(with_long_memory(copy.read_text() if fresh is None else fresh))
    return 0


def _patiently(argv: Sequence[str]) -> int:
    try:
        sys.stdout.write(ask(argv, QUESTION_S, TRY_S))
    except SchedulerOutputError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _sacct(argv: Sequence[str]) -> int:
    """The plugin's guess of an account: the site file says it, or there is none. (Its call holds a pipe that no shell sees.)"""
    if "|" not in argv:
        return _pass_on(argv)
    sys.stdout.write("none\n")
    return 0


def _sacctmgr(argv: Sequence[str]) -> int:
    """Whether the site's account exists: sbatch says so where it does not."""
    if list(argv[1:5]) != ["-n", "-s", "list", "user"] or not os.environ.get(ACCOUNT):
        return _pass_on(argv)
    sys.stdout.write("\n".join(os.environ[ACCOUNT].replace(",", " ").split()) + "\n")
    return 0


ANSWERS: Final[dict[str, Callable[[Sequence[str]], int]]] = {
    "squeue": _squeue,
    "sbatch": _pass_on,
    "scontrol": _scontrol,
    "scancel": _patiently,
    "sinfo": _patiently,
    "sacct": _sacct,
    "sacctmgr": _sacctmgr,
}


def _state() -> Path:
    state = Path(os.environ[STATE])
    state.mkdir(parents=True, exist_ok=True)
    return state


def _say(words: str) -> None:
    """On Snakemake's own standard error: the plugin keeps ours to itself."""
    line = f"slipway: {words}\n"
    try:
        with Path(f"/proc/{os.environ[MAIN_PID]}/fd/2").open("a") as stream:
            stream.write(line)
    except (OSError, KeyError):
        sys.stderr.write(line)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
