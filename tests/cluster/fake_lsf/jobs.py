"""One job as mbatchd knows it, and its start on this machine."""

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.fake_lsf import processes
from tests.cluster.fake_lsf.options import Options

LADDER = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""What a job gets that is to end, with JOB_TERMINATE_INTERVAL in between."""


@dataclass(kw_only=True, eq=False)
class Job:
    """Times are unix seconds."""

    job_id: str
    options: Options
    script: str
    environ: Mapping[str, str]
    user: str
    directory: str
    submitted: float
    state: str = "PEND"
    hosts: dict[str, int] = field(default_factory=dict)
    """Slots of each host that it has, the first one first."""
    started: float | None = None
    """Of the last start, as LSF counts it."""
    ended: float | None = None
    how: str = ""
    """How it has ended."""
    reason: str | None = None
    """Why LSF ends it: the word behind TERM_, and what it means."""
    requeue: bool = False
    """It goes back into the queue when it has ended."""
    starts: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)
    """What bhist tells."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self.process is not None

    def start(self, place: Path, queue: str) -> None:
        """Its script, in a session of its own, on this machine."""
        self.starts += 1
        self.state, self.ended, self.how, self.reason, self.requeue = "RUN", None, "", None, False
        for host in self.hosts:
            self._prepare(place, host)
        script = place / "jobs" / f"{self.job_id}.script"
        script.write_text(self.script if self.script.startswith("#!") else f"#!/bin/sh\n{self.script}")
        script.chmod(0o700)
        output = (self.options.output or "/dev/null").replace("%J", self.job_id)
        with open(output, "ab") as file:
            self.process = subprocess.Popen(
                [str(script)],
                cwd=self.directory,
                env=self._environ(place, queue),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def _prepare(self, place: Path, host: str) -> None:
        """Its directory on a host, and what programs there have in their environment."""
        own = place / "tmp" / host / f"{self.job_id}.tmpdir"
        own.mkdir(parents=True, exist_ok=True)
        words = {"TMPDIR": str(own), "HOSTNAME": host}
        (place / "jobs" / f"{self.job_id}.{host}").write_text("".join(f"{name}={value}\n" for name, value in words.items()))

    def _environ(self, place: Path, queue: str) -> dict[str, str]:
        each = [host for host, slots in self.hosts.items() for _ in range(slots)]
        hostfile = place / "jobs" / f"{self.job_id}.hostfile"
        hostfile.write_text("".join(f"{host}\n" for host in each))
        first = (place / "jobs" / f"{self.job_id}.{each[0]}").read_text().splitlines()
        return {
            **self.environ,
            **dict(line.split("=", 1) for line in first),
            "LSB_JOBID": self.job_id,
            "LSB_JOBINDEX": "0",
            "LSB_JOBNAME": self.options.name,
            "LSB_QUEUE": queue,
            "LSB_HOSTS": " ".join(each),
            "LSB_MCPU_HOSTS": "".join(f"{host} {slots} " for host, slots in self.hosts.items()),
            "LSB_DJOB_NUMPROC": str(len(each)),
            "LSB_DJOB_HOSTFILE": str(hostfile),
            "LSB_SUB_HOST": "login",
            "LSB_BATCH_JID": self.job_id,
            "LS_SUBCWD": self.directory,
            "LS_JOBPID": str(os.getpid()),
            **({"LSB_RESTART": "Y"} if self.starts > 1 else {}),
        }

    def signal(self, place: Path, number: signal.Signals) -> None:
        """To all of its processes, on all hosts."""
        processes.send(processes.of_cluster(place, self.job_id), number)

    def over(self, code: int, now: float) -> None:
        """Its script has ended."""
        self.process, self.ended = None, now
        self.how = f"Exited by signal {-code}" if code < 0 else f"Exited with exit code {code}" if code else "Done successfully"
        self.events.append((now, f"{self.how}. The CPU time used is 0.1 seconds;"))
        self.state = "PEND" if self.requeue else "EXIT" if code or self.reason else "DONE"
        if self.requeue:
            self.events.append((now, "Pending: Job has been requeued;"))
            self.hosts, self.started = {}, None
