"""`python -m cluster.schedulers.slurm.patient COMMAND ARGUMENT...`: what the stand-ins in bin/ run. Other calls go to Slurm's own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from base.errors import Cancelled, SchedulerOutputError, SchedulerSilent, SlipwayError, SubmitError
from base.publish import publish
from base.storage_clock import now_at
from cluster.schedulers.jobs import QueuedJob
from cluster.schedulers.slurm.limits import CONFIG_ANSWER_S, CONFIG_COPY_AGE_S, PLUGIN_PATIENCE_S, PLUGIN_SUBMIT_PATIENCE_S, SHORT_ANSWER_S
from cluster.schedulers.slurm.patient import ACCOUNT, MAIN_PID, STATE, STUDY, job_environ, plain_path
from cluster.schedulers.slurm.patient.answers import is_status_query, last_job_for, option, with_ended, with_long_memory, with_names
from cluster.schedulers.slurm.patient.told import tell_log
from cluster.schedulers.slurm.query import ask
from cluster.schedulers.slurm.queue import our_jobs, rule_and_wildcards, stage_of
from cluster.schedulers.slurm.submit import Call, find_by_comment, submit_once

COPY: Final = "scontrol-config.txt"


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
    name = option(argv, "--name") or ""
    try:
        text = ask(with_names(argv, _lines(f"{name}.names")), PLUGIN_PATIENCE_S, SHORT_ANSWER_S)
    except SchedulerSilent:
        _say("slurmctld does not answer; the jobs are waited for")
        return 0
    except SchedulerOutputError as error:
        _say(f"squeue says nothing of the jobs now; they are waited for: {error}")
        return 0
    sys.stdout.write(with_ended(text, _lines(f"{name}.jobs"), time.time()))
    return 0


def _sbatch(argv: Sequence[str], environ: dict[str, str]) -> int:
    """One job for one call, found again by its comment where sbatch itself got no answer."""
    name, comment = option(argv, "--job-name"), option(argv, "--comment")
    if name is None or comment is None:
        return _pass_on(argv)
    try:
        job_id = earlier_job(name, comment, _lines(f"{name}.jobs")) or _submit(argv, name, comment, environ)
    except SlipwayError as error:
        sys.stderr.write(f"{error}\n")
        tell_log(comment, str(error), os.environ)
        return 1
    _add(f"{name}.jobs", f"{job_id} {time.time():.0f} {comment}")
    sys.stdout.write(f"{job_id}\n")
    return 0


def _submit(argv: Sequence[str], name: str, comment: str, environ: dict[str, str]) -> str:
    """Its id. The comment says whose it is, and which call of sbatch it was."""
    mark = " ".join(filter(None, [comment, os.environ.get(STUDY), f"slipway-{secrets.token_hex(6)}"]))
    place = list(argv).index("--comment") + 1
    call = Call(argv=(*argv[:place], mark, *argv[place + 1 :]), env=environ)
    return submit_once(call, lambda patience: find_by_comment(name, mark, patience), PLUGIN_SUBMIT_PATIENCE_S, _say)


def earlier_job(name: str, comment: str, submitted: Sequence[str]) -> str | None:
    """The job that is in the queue for the same work already, of an earlier Snakemake that was killed: it is waited for, and no other is
    submitted. Raises Cancelled where this Snakemake has submitted one and somebody has cancelled it, since it would be tried once more;
    SubmitError where the job there will tell an earlier Snakemake in another directory of its end."""
    last = last_job_for(submitted, comment)
    if last is not None:
        if _state_of(last) == "CANCELLED":
            raise Cancelled(f"job {last} was cancelled, by scancel or by an administrator; it is not tried again in this call")
        return None
    same = (job for job in _queued_before(name) if rule_and_wildcards(comment) == (job.rule, job.wildcards))  # one that ends, and its retry
    job = next((job for job in same if stage_of(_state_of(job.job_id) or "COMPLETED") != "over"), None)
    if job is None:
        return None
    if job.directory != str(Path.cwd()):
        raise SubmitError(
            f"job {job.job_id} for the same is in the queue already, submitted in {job.directory}; "
            f"wait for its end, or `scancel {job.job_id}`"
        )
    _say(f"job {job.job_id} is in the queue already for {comment}: it is waited for")
    _add(f"{name}.names", job.name)
    return job.job_id


def _queued_before(name: str) -> list[QueuedJob]:
    """What was in the queue for this study when we came, asked for once, the oldest first."""
    path = _state() / f"{name}.before"
    mark = os.environ.get(STUDY)
    if mark is None:
        return []
    if path.exists():
        return [QueuedJob(**job) for job in json.loads(path.read_text())]
    try:
        found = [job for job in our_jobs(PLUGIN_PATIENCE_S, SHORT_ANSWER_S) if job.mark == mark]
    except SchedulerOutputError:  # sbatch will say it
        return []
    publish(path, json.dumps([asdict(job) for job in found]).encode())
    return found


def _state_of(job_id: str) -> str | None:
    """Of a job that may be over; None where nobody knows it any more, or says it."""
    try:
        return ask(("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T"), 0.0, SHORT_ANSWER_S).strip() or None
    except SchedulerOutputError:
        return None


def _scontrol(argv: Sequence[str]) -> int:
    """`scontrol show config` from a copy, made anew now and then while the controller answers, and there is room for it."""
    if list(argv[1:]) != ["show", "config"]:
        return _pass_on(argv)
    copy, fresh = _state() / COPY, None
    try:
        if not copy.exists() or now_at(copy.parent) - copy.stat().st_mtime > CONFIG_COPY_AGE_S:
            fresh = ask(argv, 0.0, CONFIG_ANSWER_S)
            publish(copy, fresh.encode())
    except (SchedulerOutputError, OSError) as error:  # a full quota too: what is known is told nevertheless
        if fresh is None and not copy.exists():
            sys.stderr.write(f"{error}\n")
            return 1
    sys.stdout.write(with_long_memory(copy.read_text() if fresh is None else fresh))
    return 0


def _patiently(argv: Sequence[str]) -> int:
    try:
        sys.stdout.write(ask(argv, PLUGIN_PATIENCE_S, SHORT_ANSWER_S))
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


def _lines(name: str) -> list[str]:
    path = _state() / name
    return path.read_text().splitlines() if path.exists() else []


def _add(name: str, line: str) -> None:
    with (_state() / name).open("a") as file:
        file.write(f"{line}\n")


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
