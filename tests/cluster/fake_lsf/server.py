"""mbatchd: it takes requests of the commands, starts jobs on its hosts, and ends them. One thread, and what is due by the clock.

`python -m tests.cluster.fake_lsf.server DIRECTORY` with a file `config.json` there; it says a line when it answers.
"""

import contextlib
import heapq
import itertools
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.fake_lsf import processes
from tests.cluster.fake_lsf.commands import Commands
from tests.cluster.fake_lsf.jobs import LADDER, Job

FIRST_ID = 101


class Server:
    """`config`: see FakeLsf."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.config: dict[str, Any] = json.loads((place / "config.json").read_text())
        self.jobs: dict[str, Job] = {}
        self.ids = map(str, itertools.count(FIRST_ID))
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place / "mbatchd"))
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ, self._serve)
        self._commands = Commands(self)

    def run(self) -> None:
        """Until it is killed."""
        while True:
            wait_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            for key, _ in self._selector.select(wait_s):
                key.data()
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            self._dispatch()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), act))

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as lines:
            line = lines.readline()
            if not line.endswith(b"\n"):
                return  # nobody waits any more
            out, err, code = self._commands.answer(json.loads(line))
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"out": out, "err": err, "code": code}).encode())

    # -- jobs on hosts

    def used(self) -> dict[str, int]:
        """Slots by host; a job that is alone there has all."""
        found: dict[str, int] = {}
        for job in self.jobs.values():
            for host, slots in job.hosts.items():
                if job.runs:
                    found[host] = found.get(host, 0) + (self.config["hosts"][host] if job.options.exclusive else slots)
        return found

    def _dispatch(self) -> None:
        for job in self.jobs.values():
            if job.state == "PEND" and not job.runs and (chosen := self._chosen(job)):
                self._start(job, chosen)

    def _chosen(self, job: Job) -> dict[str, int]:
        """Hosts with room for it; none where there are too few."""
        options, used, found, left = job.options, self.used(), {}, job.options.slots
        for host, most in self.config["hosts"].items():
            want = min(left, options.per_host or most)
            free = most - used.get(host, 0)
            if not left or host in options.not_on or free < want or (options.exclusive and used.get(host, 0)):
                continue
            found[host] = want
            left -= want
        return {} if left else found

    def _start(self, job: Job, chosen: dict[str, int]) -> None:
        now = time.time()
        job.hosts, job.started = chosen, now
        job.start(self.place, self.config["queue"])
        assert job.process is not None
        names = " ".join(f"<{slots}*{host}>" for host, slots in chosen.items())
        job.events.append((job.started, f"Dispatched {job.options.slots} Task(s) on Host(s) {names};"))
        job.events.append((job.started, f"Starting (Pid {job.process.pid});"))
        descriptor = os.pidfd_open(job.process.pid)
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._ended(job, descriptor))
        if job.options.minutes is not None:
            number = job.starts
            self.after(job.options.minutes * 60, lambda: self.over_limit(job, number))

    def _ended(self, job: Job, descriptor: int) -> None:
        assert job.process is not None
        code = job.process.wait()
        self._selector.unregister(descriptor)
        os.close(descriptor)
        for host in job.hosts:
            shutil.rmtree(self.place / "tmp" / host / f"{job.job_id}.tmpdir", ignore_errors=True)
        job.over(code, time.time())

    def over_limit(self, job: Job, number: int) -> None:
        """USR2; after ten minutes the rest."""
        if job.runs and job.starts == number and job.reason is None:
            job.reason = "RUNLIMIT"
            job.signal(self.place, signal.SIGUSR2)
            self.after(self.config["grace_s"], lambda: self.step_down(job, number))

    def step_down(self, job: Job, number: int, step: int = 0) -> None:
        """The next signal of those by which a start of a job is ended."""
        if job.runs and job.starts == number:
            job.signal(self.place, LADDER[step])
            if step + 1 < len(LADDER):
                self.after(self.config["interval_s"], lambda: self.step_down(job, number, step + 1))

    def close(self) -> None:
        """All that runs is killed."""
        processes.send(processes.of_cluster(self.place), signal.SIGKILL)


def main() -> None:
    place = Path(sys.argv[1])
    server = Server(place)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        server.run()
    finally:
        server.close()


if __name__ == "__main__":
    main()
