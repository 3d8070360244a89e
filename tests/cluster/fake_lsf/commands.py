"""What each command comes to: its output, its complaints and its exit code."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.cluster.fake_lsf import texts
from tests.cluster.fake_lsf.jobs import Job
from tests.cluster.fake_lsf.options import RefusedError, parse

if TYPE_CHECKING:
    from tests.cluster.fake_lsf.server import Server

Answer: TypeAlias = tuple[str, str, int]
FAILED = 255
OVER = ("DONE", "EXIT")
LINE = "-" * 78 + "\n"


class Commands:
    """Those of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._all: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "bsub": self._bsub,
            "bjobs": self._bjobs,
            "bhist": self._bhist,
            "bkill": partial(self._to_each, act=self._kill),
            "brequeue": partial(self._to_each, act=self._requeue),
            "bqueues": self._bqueues,
            "control": self._control,
        }

    def answer(self, request: dict[str, Any]) -> Answer:
        return self._all[request["name"]](request)

    def _bsub(self, request: dict[str, Any]) -> Answer:
        server, now = self._server, time.time()
        queue = server.config["queue"]
        try:
            options = parse(request["words"], request["script"])
            if options.queue not in (None, queue):
                raise RefusedError(f"{options.queue}: No such queue. Job not submitted.")
            if options.slots > sum(server.config["hosts"].values()):
                raise RefusedError("Too many processors requested. Job not submitted.")
        except RefusedError as error:
            return "", f"{error}\n", FAILED
        job = Job(
            job_id=next(server.ids),
            options=options,
            script=request["script"],
            environ=request["environ"],
            user=request["user"],
            directory=options.directory or request["cwd"],
            submitted=now,
            state="PSUSP" if options.held else "PEND",
        )
        job.events.append((now, texts.submitted(job)))
        server.jobs[job.job_id] = job
        default = "" if options.queue else "default "
        return f"Job <{job.job_id}> is submitted to {default}queue <{queue}>.\n", "", 0

    def _bjobs(self, request: dict[str, Any]) -> Answer:
        words: list[str] = request["words"]
        chosen, missing = self._chosen(words, {"-noheader": 0, "-a": 0, "-l": 0, "-o": 1})
        if not any(word.isdecimal() for word in words) and "-a" not in words:
            chosen = [job for job in chosen if job.state not in OVER]
        if not chosen and not missing:
            return "", "No unfinished job found\n" if "-a" not in words else "No job found\n", FAILED
        if "-l" in words:
            out = LINE.join(texts.details(job, self._reasons(job)) for job in chosen)
        else:
            form = words[words.index("-o") + 1] if "-o" in words else "jobid stat job_name"
            found = re.search(r" delimiter='(.)'$", form)
            fields, delimiter = form.split(" delimiter=")[0].split(), " " if found is None else found[1]
            out = "".join(f"{texts.row(job, fields, delimiter)}\n" for job in chosen)
        return out, "".join(f"Job <{number}> is not found\n" for number in missing), FAILED if missing else 0

    def _bhist(self, request: dict[str, Any]) -> Answer:
        chosen, missing = self._chosen(request["words"], {"-l": 0})
        out = LINE.join(texts.history(job) for job in chosen)
        return out, "No matching job found\n" if missing else "", FAILED if missing else 0

    def _chosen(self, words: Sequence[str], options: dict[str, int]) -> tuple[list[Job], list[str]]:
        """The jobs that are named, or all, and numbers of none."""
        named, rest = [], iter(words)
        for word in rest:
            if word not in options:
                named.append(word)
            elif options[word]:
                next(rest)
        jobs = self._server.jobs
        chosen = [jobs[number] for number in named if number in jobs] if named else list(jobs.values())
        return chosen, [number for number in named if number not in jobs]

    def _reasons(self, job: Job) -> str:
        few = len(job.options.not_on)
        return f"Not specified in job submission: {few} hosts" if few else "Job slot limit reached: 2 hosts"

    def _to_each(self, request: dict[str, Any], act: Callable[[Job, str], Answer]) -> Answer:
        jobs = self._server.jobs
        answers = [
            act(jobs[number], request["user"]) if number in jobs else ("", f"Job <{number}>: No matching job found\n", FAILED)
            for number in request["words"]
        ]
        return "".join(out for out, _, _ in answers), "".join(err for _, err, _ in answers), max((code for *_, code in answers), default=0)

    def _kill(self, job: Job, user: str) -> Answer:
        if job.state in OVER:
            return "", f"Job <{job.job_id}>: Job has already finished\n", FAILED
        now = time.time()
        job.events.append((now, f"Signal <KILL> requested by user or administrator <{user}>;"))
        job.reason, job.requeue = "OWNER", False
        if not job.runs:
            job.state, job.ended, job.how = "EXIT", now, "Exited"
        else:
            self._server.step_down(job, job.starts)
        return f"Job <{job.job_id}> is being terminated\n", "", 0

    def _requeue(self, job: Job, user: str) -> Answer:
        if not job.runs:
            return "", f"Job <{job.job_id}>: Job has already finished\n" if job.state in OVER else "Job has not started yet\n", FAILED
        job.events.append((time.time(), f"Signal <REQUEUE_PEND> requested by user or administrator <{user}>;"))
        job.reason, job.requeue = "REQUEUE_OWNER", True
        self._server.step_down(job, job.starts)
        return f"Job <{job.job_id}> is being requeued\n", "", 0

    def _bqueues(self, _request: dict[str, Any]) -> Answer:
        return texts.queues([self._server.config["queue"]]), "", 0

    def _control(self, request: dict[str, Any]) -> Answer:
        """What no command does: the run limit of a job is reached."""
        job = self._server.jobs[request["words"][0]]
        self._server.over_limit(job, job.starts)
        return "", "", 0
