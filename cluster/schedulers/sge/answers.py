"""Ask Grid Engine about jobs and nodes, and parse its answers into frozen values."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from base import errors, sanitize, system
from cluster.schedulers.jobs import Hold, QueuedJob, Stage, parse_work
from cluster.schedulers.queries import ANSWER_S, PATIENCE_S, Server, ask, in_english, inherited_environ, query, refusal

WORK: Final = "work"
"""The name of a job's work in its context, the only one of ours: `qsub -ac work=...`."""
LATEST: Final = 2**33
"""The latest time that is accepted, in unix seconds: the year 2242."""
_BLOCK: Final = re.compile(r"^={10,}\s*$", re.MULTILINE)
_FIELD: Final = re.compile(r"(?P<key>[A-Za-z][^:]{0,40}?)(?: +1)?: +(?P<value>.*)")
ENDED_BY: Final = {"37": "timeout", "36": "timeout", "24": "requeued", "25": "requeued", "19": "node_lost", "21": "node_lost"}
"""The reason for the number behind `failed` in the accounting. 100: a signal has ended the job."""
KILLED: Final = "137"
RESCHEDULED: Final = "25"
UNKNOWN_TIME: Final = "-/-"
"""The start time of a job whose nodes have not reported it: the job was put back by force."""
EARLY_S: Final = 10.0
"""How long before `h_rt` is over the job must have ended: on other nodes than the first its clock begins at dispatch, up to 3 s earlier."""
SHORT_NOTICE_S: Final = 15.0
"""A queue that kills sooner after its warning may leave no record of a cancelled run."""
ORPHANS_S: Final = 60
"""How long the script waits for what a killed program has started: as long as `-notify` leaves before the end of a job."""


def stage_of(letters: str) -> Stage:
    """Return the stage for the letters of a state, such as `qw`, `dr` or `Rr`. In an error state a job waits until somebody clears it."""
    if "z" in letters:
        return "over"
    if "d" in letters:
        return "ends"
    return "waits" if set(letters) & set("qwE") else "runs"


def hold_of(letters: str) -> Hold:
    if stage_of(letters) != "waits":
        return ""
    return "failed" if "E" in letters else "held" if "h" in letters else ""


def is_started_again(letters: str) -> bool:
    """Return True if a job was put back into the queue, and its new nodes have not reported yet that it runs.
    If one of them was still ending the start before, 8.1.9 leaves the job in this state for a quarter of an hour."""
    return "R" in letters and "t" in letters


def state_words(letters: str) -> str:
    known = (("d", "being ended"), ("E", "in an error state"), ("h", "held"), ("w", "waiting"), ("z", "over"))
    more = (("s", "suspended"), ("S", "suspended"), ("T", "suspended"), ("t", "being started"))
    return f"{next((words for letter, words in (*known, *more) if letter in letters), 'running')} ({letters})"


def parse_list(answer: str) -> tuple[QueuedJob, ...]:
    """Parse the answer of `qstat -xml -r`. Only the first task of an array is kept. Raises SchedulerOutputError."""
    try:
        root = ElementTree.fromstring(answer)  # noqa: S314 - what qmaster says; entities of Python's expat are bounded
    except ElementTree.ParseError as error:
        raise errors.SchedulerOutputError(f"qstat answered what is no XML ({error}): {sanitize.text(answer, 200)!r}") from error
    found: dict[str, QueuedJob] = {}
    for job in root.iter("job_list"):
        one = _listed(job)
        if one is not None:
            found.setdefault(one.job_id, one)
    return tuple(sorted(found.values(), key=lambda job: (len(job.job_id), job.job_id)))


def _listed(job: ElementTree.Element) -> QueuedJob | None:
    words = {child.tag: (child.text or "").strip() for child in job}
    h_rt = next((child.text for child in job.iter("hard_request") if child.get("name") == "h_rt"), None)
    job_id, letters = words.get("JB_job_number", ""), words.get("state", "")
    if not job_id.isdecimal() or not letters:
        return None
    host = words.get("queue_name", "").partition("@")[2]
    started, limit_s = _time(words.get("JAT_start_time", ""), "%Y-%m-%dT%H:%M:%S"), duration_s(h_rt or "")
    return QueuedJob(
        job_id=job_id,
        stage=stage_of(letters),
        state=state_words(letters),
        hold=hold_of(letters),
        restarts=int("R" in letters),
        submitted=_time(words.get("JB_submission_time", ""), "%Y-%m-%dT%H:%M:%S"),
        expected=started,
        end=None if started is None or limit_s is None else started + limit_s - EARLY_S,
        name=words.get("full_job_name") or words.get("JB_name", ""),
        nodes=host,
        lost=host if is_started_again(letters) else "",
    )


def parse_details(answer: str) -> dict[str, dict[str, str]]:
    """Parse the answer of `qstat -j ID,ID` into fields by job. Lines that continue a field (they begin with blanks) are left out."""
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


def with_details(job: QueuedJob, fields: Mapping[str, str]) -> QueuedJob:
    """Add what only the fields of `qstat -j` in English tell."""
    submitted = _time(" ".join(fields.get("submission_time", "").split()), "%a %b %d %H:%M:%S %Y")
    return replace(
        job,
        why=why_waiting(job, fields) if job.stage == "waits" else "",
        submitted=submitted if job.submitted is None else job.submitted,
        directory=fields.get("cwd", ""),
        **parse_work(fields.get("context", "").partition(f"{WORK}=")[2]),
    )


def why_waiting(job: QueuedJob, fields: Mapping[str, str]) -> str:
    """Explain why a job waits, with Grid Engine's own words, which people can search for."""
    if job.hold == "failed":
        return f"Grid Engine could not start it ({fields.get('error reason', 'it does not say why')})"
    if job.hold == "held":
        return "held"
    said = fields.get("scheduling info", "")
    if "is full" in said or "only offers" in said or "offers only" in said:
        return f"waiting for slots to become free ({said})"
    return said or "Grid Engine has not looked at it yet, or does not say why (schedd_job_info)"


def parse_accounting(answer: str) -> dict[str, dict[str, str]]:
    """Parse the answer of `qacct -j` into the last record of each job. Those before it are of programs on its nodes, and earlier starts."""
    found = {}
    for block in _BLOCK.split(answer):
        pairs = (line.split(None, 1) for line in block.splitlines())
        record = {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}
        if record.get("jobnumber", "").isdecimal():
            found[record["jobnumber"]] = record
    return found


def ended_by_of(record: Mapping[str, str]) -> str | None:
    """Derive from its accounting why Grid Engine has ended a job. Returns None if it has not."""
    failed = record.get("failed", "").split(None, 1)[:1]
    if failed == ["100"] and record.get("exit_status", "").split(None, 1)[:1] == [KILLED]:
        return "cancelled"
    if failed == [RESCHEDULED] and record.get("start_time") == UNKNOWN_TIME:
        return "node_lost"
    return ENDED_BY.get(failed[0]) if failed else None


def parse_settings(answer: str) -> dict[str, str]:
    """Parse the answer of `qconf -sp` or `-sq`: lines of a key and a value, which may go on after a backslash."""
    lines = re.sub(r"\\\n\s*", " ", answer).splitlines()
    return {pair[0]: pair[1].strip() for line in lines if len(pair := line.split(None, 1)) == 2}


def duration_s(word: str) -> int | None:
    """Convert `3600` or `1:00:00` to seconds. Returns None for anything else."""
    parts = [sanitize.ascii_int(part or "0") for part in word.split(":")]
    if not word or len(parts) > 3 or any(part is None for part in parts):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + (part or 0)
    return seconds


def _time(word: str, form: str) -> float | None:
    """Convert a local time to unix seconds. Returns None for anything else."""
    try:
        found = datetime.strptime(word, form).timestamp()  # noqa: DTZ007 - Grid Engine says local time, without its zone
    except (ValueError, OverflowError, OSError):
        return None
    return found if 0 < found < LATEST else None


# Queries to qmaster about jobs.


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
"""Messages of Grid Engine's commands while qmaster is silent: it is being restarted, busy, or cut off."""
NO_CELL: Final = ("SGE_ROOT", "cell directory", "act_qmaster")
"""Messages of Grid Engine's commands where no cell is configured."""
NO_SUCH_JOB: Final = ("do not exist", "does not exist", "not found")
CELL: Final = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT", "SGE_CLUSTER_NAME")
"""Variables by which the commands find their cell."""


def submit_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job inherits, and those that qsub needs."""
    return in_english({**inherited_environ(environ), **{name: environ[name] for name in CELL if name in environ}})


SGE: Final = Server(
    title="Grid Engine",
    name="Grid Engine's qmaster",
    submit=("qsub", "-terse"),
    job_id=r"^(\d+)(?:\.\S+)?$",
    list="qstat",
    show="qstat -j",
    cancel="qdel",
    silence=SILENCE,
    nowhere=NO_CELL,
    cluster="belongs to no cell of Grid Engine",
    advice="source the cell's settings.sh, do this on a submit host",
    refusals=(("neither submit nor admin host", "do this on a submit host, or ask the site for `qconf -as` of this one"),),
    on_both=True,
    dull=("Exiting.",),
    submission=submit_environ,
)


def listed_jobs(
    patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, states: str = "prs", queues: Sequence[str] = ()
) -> tuple[QueuedJob, ...]:
    """Query this user's jobs; with `z` among the states also those that have just ended.

    `queues` are options that select by the queue of a job's first node.
    """
    return parse_list(ask(SGE, ("qstat", "-xml", "-r", *queues, "-s", states, "-u", system.account_name()), patience_s, timeout_s))


def job_details(job_ids: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> dict[str, dict[str, str]]:
    """Query fields by job, by one query. A job that is over is not among them."""
    if not job_ids:
        return {}
    return parse_details(ask_about(("qstat", "-j", ",".join(job_ids)), NO_SUCH_JOB, patience_s, timeout_s))


def ask_about(argv: Sequence[str], accepted: Sequence[str], patience_s: float, timeout_s: float = ANSWER_S) -> str:
    """Return the standard output of a command about jobs, which may complain, on either stream, in one of the words `accepted`."""
    result = query(SGE, argv, patience_s, timeout_s)
    if result.returncode and not any(words in f"{result.stdout}\n{result.stderr}" for words in accepted):
        raise refusal(SGE, result)
    return result.stdout


def listed_job(job_id: str, patience_s: float = PATIENCE_S) -> QueuedJob | None:
    """Query one job. Returns None if it is not in the queue."""
    return next((job for job in listed_jobs(patience_s) if job.job_id == job_id), None)
