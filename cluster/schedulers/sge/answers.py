"""What Grid Engine's commands answer, read into frozen values. Pure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from base.account import account_name
from base.errors import SchedulerOutputError
from base.sanitize import digits, text
from cluster.schedulers.jobs import Hold, Stage
from cluster.schedulers.queries import ANSWER_S, PATIENCE_S, Server, ask, asked, refusal

LATEST: Final = 2**33
"""Unix seconds: the year 2242."""
_BLOCK: Final = re.compile(r"^={10,}\s*$", re.MULTILINE)
_FIELD: Final = re.compile(r"(?P<key>[A-Za-z][^:]{0,40}?)(?: +1)?: +(?P<value>.*)")
ENDED_BY: Final = {"37": "timeout", "36": "timeout", "24": "requeued", "25": "requeued", "19": "node_lost", "21": "node_lost"}
"""By the number behind `failed` in the accounting. 100: a signal has ended the job."""
KILLED: Final = "137"
RESCHEDULED: Final = "25"
UNKNOWN_TIME: Final = "-/-"
"""When a job began of which no node has told: it was put back by force."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A job in the list of qstat. Times are unix seconds."""

    job_id: str
    name: str
    letters: str
    """Its state: `qw`, `r`, `dr`, `Eqw`, `Rr`, `z` ..."""
    slots: int
    host: str = ""
    submitted: float | None = None
    started: float | None = None
    h_rt_s: int | None = None

    @property
    def stage(self) -> Stage:
        """What becomes of it. In an error state it waits until somebody clears it."""
        if "z" in self.letters:
            return "over"
        if "d" in self.letters:
            return "ends"
        return "waits" if set(self.letters) & set("qwE") else "runs"

    @property
    def hold(self) -> Hold:
        """Whether it waits until somebody lets it go."""
        if self.stage != "waits":
            return ""
        return "failed" if "E" in self.letters else "held" if "h" in self.letters else ""

    @property
    def starts_again(self) -> bool:
        """Put back into the queue, and given nodes that have not said yet that it runs. Where one of them still ended the start before,
        8.1.9 leaves it so for a quarter of an hour."""
        return "R" in self.letters and "t" in self.letters

    @property
    def words(self) -> str:
        """Its state for people, with Grid Engine's letters."""
        known = (("d", "being ended"), ("E", "in an error state"), ("h", "held"), ("w", "waiting"), ("z", "over"))
        more = (("s", "suspended"), ("S", "suspended"), ("T", "suspended"), ("t", "being started"))
        return f"{next((words for letter, words in (*known, *more) if letter in self.letters), 'running')} ({self.letters})"


def parse_list(answer: str) -> tuple[Listed, ...]:
    """Of `qstat -xml -r`, tasks of arrays left out but for the first. Raises SchedulerOutputError."""
    try:
        root = ElementTree.fromstring(answer)  # noqa: S314 - what qmaster says; entities of Python's expat are bounded
    except ElementTree.ParseError as error:
        raise SchedulerOutputError(f"qstat answered what is no XML ({error}): {text(answer, 200)!r}") from error
    found: dict[str, Listed] = {}
    for job in root.iter("job_list"):
        one = _listed(job)
        if one is not None:
            found.setdefault(one.job_id, one)
    return tuple(sorted(found.values(), key=lambda job: (len(job.job_id), job.job_id)))


def _listed(job: ElementTree.Element) -> Listed | None:
    words = {child.tag: (child.text or "").strip() for child in job}
    h_rt = next((child.text for child in job.iter("hard_request") if child.get("name") == "h_rt"), None)
    job_id, letters = words.get("JB_job_number", ""), words.get("state", "")
    if not job_id.isdecimal() or not letters:
        return None
    return Listed(
        job_id=job_id,
        name=words.get("full_job_name") or words.get("JB_name", ""),
        letters=letters,
        slots=digits(words.get("slots", "")) or 1,
        host=words.get("queue_name", "").partition("@")[2],
        submitted=_time(words.get("JB_submission_time", ""), "%Y-%m-%dT%H:%M:%S"),
        started=_time(words.get("JAT_start_time", ""), "%Y-%m-%dT%H:%M:%S"),
        h_rt_s=duration_s(h_rt or ""),
    )


def parse_details(answer: str) -> dict[str, dict[str, str]]:
    """Of `qstat -j ID,ID`: fields by job. A line that begins with blanks belongs to the field before it; of those the first is kept."""
    found = {}
    for block in _BLOCK.split(answer):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            match = _FIELD.fullmatch(line)
            if match is not None:
                fields.setdefault(match["key"].strip(), match["value"].strip())
        if fields.get("job_number", "").isdecimal():
            found[fields["job_number"]] = fields
    return found


def submitted_of(fields: Mapping[str, str]) -> float | None:
    """When a job was submitted, of the fields of `qstat -j` in English."""
    return _time(" ".join(fields.get("submission_time", "").split()), "%a %b %d %H:%M:%S %Y")


def context_of(fields: Mapping[str, str], name: str) -> str:
    """A word that was given to `qsub -ac NAME=...`; no other of ours is."""
    return fields.get("context", "").partition(f"{name}=")[2]


def why_waiting(listed: Listed, fields: Mapping[str, str]) -> str:
    """Why a job waits, in words, with Grid Engine's own for who wants to search for them."""
    if "E" in listed.letters:
        return f"Grid Engine could not start it ({fields.get('error reason', 'it does not say why')})"
    if "h" in listed.letters:
        return "held"
    said = fields.get("scheduling info", "")
    if "is full" in said or "only offers" in said or "offers only" in said:
        return f"waiting for slots to become free ({said})"
    return said or "Grid Engine has not looked at it yet, or does not say why (schedd_job_info)"


def parse_accounting(answer: str) -> dict[str, dict[str, str]]:
    """Of `qacct -j`, by job: its last record, which is the job's; those before it are of programs on its nodes, and of earlier starts."""
    found = {}
    for block in _BLOCK.split(answer):
        pairs = (line.split(None, 1) for line in block.splitlines())
        record = {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}
        if record.get("jobnumber", "").isdecimal():
            found[record["jobnumber"]] = record
    return found


def ended_by_of(record: Mapping[str, str]) -> str | None:
    """Why Grid Engine has ended a job, by its accounting; None where it has not."""
    failed = record.get("failed", "").split(None, 1)[:1]
    if failed == ["100"] and record.get("exit_status", "").split(None, 1)[:1] == [KILLED]:
        return "cancelled"
    if failed == [RESCHEDULED] and record.get("start_time") == UNKNOWN_TIME:
        return "node_lost"
    return ENDED_BY.get(failed[0]) if failed else None


def parse_settings(answer: str) -> dict[str, str]:
    """Of `qconf -sp` or `-sq`: lines of a key and a value, which may go on after a backslash."""
    lines = re.sub(r"\\\n\s*", " ", answer).splitlines()
    return {pair[0]: pair[1].strip() for line in lines if len(pair := line.split(None, 1)) == 2}


def parse_hosts(answer: str) -> Iterator[str]:
    """Of qhost: names of execution hosts."""
    for words in map(str.split, answer.splitlines()[2:]):
        if len(words) > 6 and words[0] != "global":
            yield words[0]


def duration_s(word: str) -> int | None:
    """Seconds of `3600` or `1:00:00`; None for what is none."""
    parts = [digits(part or "0") for part in word.split(":")]
    if not word or len(parts) > 3 or any(part is None for part in parts):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + (part or 0)
    return seconds


def _time(word: str, form: str) -> float | None:
    """Unix seconds of a local time; None for what is none."""
    try:
        found = datetime.strptime(word, form).timestamp()  # noqa: DTZ007 - Grid Engine says local time, without its zone
    except (ValueError, OverflowError, OSError):
        return None
    return found if 0 < found < LATEST else None


# What qmaster knows of jobs: short questions, asked again while it is silent.
#
# Everything here may wait up to `patience_s`: processes that must not, call it in a child with a time limit.


SILENCE: Final = (
    "unable to send message to qmaster",
    "unable to contact qmaster",
    "got select error",
    "got send error",
    "got read error",
    "got no connection",
    "can't connect to service",
    "failed receiving gdi request",
    "communication error",
)
"""What Grid Engine's commands say when qmaster does not answer: it is restarted, busy, or cut off."""
NO_CELL: Final = ("SGE_ROOT", "cell directory", "act_qmaster")
"""What they say where no cell is configured."""
NO_SUCH_JOB: Final = ("do not exist", "does not exist", "not found")
SGE: Final = Server(
    title="Grid Engine",
    name="sge_qmaster",
    silence=SILENCE,
    nowhere=NO_CELL,
    cluster="belongs to no cell of Grid Engine",
    advice="source the cell's settings.sh, do this on a submit host",
    refusals=(("neither submit nor admin host", "do this on a submit host, or ask the site for `qconf -as` of this one"),),
    on_both=True,
    dull=("Exiting.",),
)


def listed_jobs(
    patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, states: str = "prs", queues: Sequence[str] = ()
) -> tuple[Listed, ...]:
    """All of this user in the queue; with `z` among the states also those that have just ended. `queues`: words that choose by the queue
    of a job's first node."""
    return parse_list(ask(SGE, ("qstat", "-xml", "-r", *queues, "-s", states, "-u", account_name()), patience_s, timeout_s))


def job_details(job_ids: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> dict[str, dict[str, str]]:
    """Fields by job, by one question; a job that is over is not among them."""
    if not job_ids:
        return {}
    result = asked(SGE, ("qstat", "-j", ",".join(job_ids)), patience_s, timeout_s)
    if result.returncode and not any(words in result.stdout + result.stderr for words in NO_SUCH_JOB):
        raise refusal(SGE, result)
    return parse_details(result.stdout)


def listed_job(job_id: str, patience_s: float = PATIENCE_S) -> Listed | None:
    """The job of that id, if it is in the queue."""
    return next((job for job in listed_jobs(patience_s) if job.job_id == job_id), None)
