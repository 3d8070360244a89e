"""The controller: whether and how fast it answers, how busy it is, and which accounts and qos are ours. Judging is pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from base.command import last_lines
from base.finding import Finding
from cluster.doctor.asked import Asked
from cluster.schedulers.slurm.limits import SLOW_CONTROLLER_S

SUBJECT: Final = "scheduler"
SILENT: Final = "the controller does not answer"
BUSY_THREADS: Final = 100
"""Of 256 that the controller has by default."""
LONG_QUEUE: Final = 1000
ASSOCIATIONS: Final = ("sacctmgr", "--noheader", "--parsable2", "show", "associations")
FORMAT: Final = ("format=account,partition,qos,defaultqos,maxjobs,maxsubmit",)


@dataclass(frozen=True, kw_only=True)
class Association:
    """One line of what sacctmgr says of us. `qos` may be used with `account`, in `partition` where it is not empty."""

    account: str
    partition: str
    qos: tuple[str, ...]
    limits: str


def parse_associations(text: str) -> tuple[Association, ...]:
    """The answer to `ASSOCIATIONS` with `FORMAT`."""
    found = []
    for line in text.splitlines():
        words = line.split("|")
        if len(words) >= 6 and words[0]:
            limits = ", ".join(f"{name} {value}" for name, value in zip(("MaxJobs", "MaxSubmit"), words[4:6], strict=True) if value)
            qos = tuple(name for name in words[2].split(",") if name)
            found.append(Association(account=words[0], partition=words[1], qos=qos, limits=limits))
    return tuple(found)


def judge_associations(associations: Sequence[Association], asked: Asked, user: str) -> Iterator[Finding]:
    """Pure: whether the account and qos of the site file are ours."""
    subject = "accounts"
    accounts = list(dict.fromkeys(found.account for found in associations))
    if not accounts:
        text = f"{user} has no account in Slurm's accounting"
        yield Finding(subject, "warning", text, "ask for one where this cluster enforces accounts; jobs are refused then")
        return
    if asked.account and asked.account not in accounts:
        text = f"account {asked.account!r} of the site file is not one of {user}'s: {', '.join(accounts)}"
        yield Finding(subject, "error", text, "account: one of these in the site file")
    elif not asked.account and len(accounts) > 1:
        text = f"{user} has the accounts {', '.join(accounts)}; the site file names none: the default one pays"
        yield Finding(subject, "note", text, "account: NAME in the site file")
    own = [found for found in associations if found.account == (asked.account or found.account)] or list(associations)
    qos = list(dict.fromkeys(name for found in own for name in found.qos))
    if asked.qos and qos and asked.qos not in qos:
        text = f"qos {asked.qos!r} of the site file is not open to account {asked.account or accounts[0]}: {', '.join(qos)}"
        yield Finding(subject, "error", text, "qos: one of these in the site file")
    for found in own:
        limits = f"; {found.limits}" if found.limits else ""
        qualities = f"qos {', '.join(found.qos)}" if found.qos else "no qos"
        where = f" in {found.partition}" if found.partition else ""
        yield Finding(subject, "ok", f"account {found.account}{where}: {qualities}{limits}")


def judge_ping(text: str, taken_s: float) -> Iterator[Finding]:
    """Pure: the answer of `scontrol ping`, and how long it took."""
    said = "; ".join(line.strip() for line in text.splitlines() if "Slurmctld" in line) or last_lines(text, 1)
    if not re.search(r"\bUP\b", said):
        text = f"{SILENT}: {said or 'no word from scontrol ping'}; nothing else was asked of it"
        advice = (
            "wait and ask again: sbatch and squeue fail now, runs that go on are not lost. If it stays so: is SLURM_CONF the right one?"
        )
        yield Finding(SUBJECT, "error", text, advice)
    elif re.search(r"\bDOWN\b", said):
        yield Finding(SUBJECT, "note", f"one of the controllers is down: {said}")
    elif taken_s > SLOW_CONTROLLER_S:
        text = f"the controller took {taken_s:.1f} s to answer: it is busy"
        yield Finding(SUBJECT, "warning", text, "`slipway submit` asks it least: one job for the whole study")
    else:
        yield Finding(SUBJECT, "ok", f"the controller answers in {max(1, round(taken_s * 1000))} ms")


def judge_activity(sdiag: str, user: str) -> Iterator[Finding]:
    """Pure: how busy the controller is, by `sdiag`, and the part that is ours."""
    threads, agents, pending = (_number(sdiag, name) for name in ("Server thread count", "Agent queue size", "Jobs pending"))
    if threads is not None and threads > BUSY_THREADS:
        text = f"the controller works on {threads} questions at once: it is overloaded"
        yield Finding(SUBJECT, "warning", text, "`slipway submit` asks it least: one job for the whole study")
    if agents is not None and agents > LONG_QUEUE:
        text = f"{agents} messages to nodes wait in the controller: jobs start and end late"
        yield Finding(SUBJECT, "note", text, "nothing: runs wait patiently")
    dbd = _number(sdiag, "DBD Agent queue size")
    if dbd is not None and dbd > LONG_QUEUE:
        text = f"{dbd} messages wait for slurmdbd: sacct shows old states"
        yield Finding(SUBJECT, "warning", text, "nothing for runs, which are asked for by squeue; sacct is late for people")
    ours = re.search(rf"^\s*{re.escape(user)}\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:(\d+)", sdiag, re.MULTILINE)
    if ours and pending is not None:
        text = f"sdiag: {pending} jobs wait; {user} has asked {ours[1]} times, {int(ours[2]) / 1000:.1f} ms each"
        yield Finding(SUBJECT, "ok", text)


def _number(text: str, name: str) -> int | None:
    match = re.search(rf"^\s*{re.escape(name)}:\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None
