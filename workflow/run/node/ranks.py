"""The processes of a run on one node: started through the engine, watched by exit, output and events, ended as a whole."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from base.errors import SlipwayError
from base.refusals import FULL_WORDS
from cluster import processes
from cluster.machine import oom_kills
from containers.engines import Engine, Process
from containers.spec import EnginePlan
from workflow.run.link.calls import Call
from workflow.run.link.event_loop import Loop
from workflow.run.node.beats import Beats
from workflow.run.node.limits import CONTAINER_REMOVAL_S
from workflow.run.node.rank_log import RankLog
from workflow.run.record.outcome import FROZEN, RankEnd, RankState
from workflow.run.record.torchrun_words import first_failed


class Watched:
    """One started process with its log and the events of its ranks."""

    def __init__(self, process: Process, out: Path, logs: Path, host: str) -> None:
        now = time.monotonic()
        self.process = process
        self.host = host
        self._out = out
        self.log = RankLog(logs / f"{process.plan.name}.log")
        self.beats = {rank: Beats(out / f"events-{rank}.jsonl", now, time.monotonic) for rank in process.plan.ranks}
        self.ended = False

    def read_output(self) -> bool:
        """Take what it has printed; False at the end of the stream."""
        try:
            data = os.read(self.process.output_fd, 1 << 18)
        except BlockingIOError:
            return True
        self.log.write(data)
        return bool(data)

    def drain(self) -> None:
        """Take all that is left in the pipe now: descendants may hold it open for ever."""
        for _ in range(256):
            try:
                data = os.read(self.process.output_fd, 1 << 18)
            except (BlockingIOError, OSError):
                return
            if not data:
                return
            self.log.write(data)

    def end(self, oom_kill: bool) -> RankEnd:
        """What is to be told after the exit."""
        self.drain()
        now = time.monotonic()
        for beats in self.beats.values():
            beats.poll(now)
        errors = {rank: beats.error for rank, beats in self.beats.items() if beats.error is not None}
        plan, code, failed = self.process.plan, self.process.exit_code(), next(iter(errors), None)
        if plan.launcher is not None and code:
            failed, code = first_failed(code, self.log.recent(), plan.ranks, errors)
        error = None if failed is None else errors.get(failed)
        if code and (error or {}).get("kind") in (None, "error") and (full := self._words_of_full_disk()) is not None:
            error = {"message": full, **(error or {}), "kind": "storage"}
        odd = {rank: problem for rank, beats in self.beats.items() if not code and (problem := beats.clock.problem()) is not None}
        looked = time.monotonic()
        late = {rank: words for rank, beats in self.beats.items() if not code and (words := beats.clock.unwatched(looked)) is not None}
        return RankEnd(
            ranks=plan.ranks,
            host=self.host,
            exit_code=code,
            time=(error or {}).get("time") or time.time(),
            error_kind=error.get("kind") if error else None,
            error_message=error.get("message") or None if error else None,
            oom_kill=oom_kill,
            run_stop=all(beats.stopped for beats in self.beats.values()),
            last_lines=self.log.last_lines(),
            failed_rank=next(iter(odd), None) if failed is None else failed,
            checkpoint=next((beats.checkpoint for beats in self.beats.values() if beats.checkpoint is not None), None),
            wrong_clock=next(iter(odd.values()), None),
            windows=tuple(
                seen for rank, beats in self.beats.items() if not code and (seen := beats.window.seen(rank, time.monotonic())) is not None
            ),
            unwatched=next((f"rank {rank} on {self.host} {words}" for rank, words in late.items()), None),
            sidecar=plan.sidecar,
            may_end=plan.may_end,
            launcher=plan.launcher if code and failed is None else None,
        )

    def _words_of_full_disk(self) -> str | None:
        """The last line in which the program said that a disk is full, where that of the node's cache is; else None."""
        from data_prep.space import is_full

        said = [line for line in self.log.last_lines().splitlines() if any(words in line for words in FULL_WORDS)]
        return said[-1] if said and self._out.is_dir() and is_full(self._out, 0) else None

    def is_overdue(self, now: float, beat_s: float, init_s: float) -> bool:
        """Whether a rank of it has been silent for too long."""
        return any(beats.silent_s(now) > beats.limit_s(beat_s, init_s) for beats in self.beats.values())

    def states(self, now: float, beat_s: float, init_s: float) -> list[RankState]:
        """Per rank: how long it has been silent, what the limit is, and whether its process is stopped."""
        return [
            RankState(
                rank=rank,
                host=self.host,
                phase=beats.phase,
                step=beats.step,
                silent_s=round(beats.silent_s(now), 3),
                limit_s=round(beats.limit_s(beat_s, init_s), 3),
                state=state_of_rank(self.process, rank),
                last_lines=self.log.last_lines(),
            )
            for rank, beats in self.beats.items()
        ]


def state_of_rank(process: Process, rank: int) -> str:
    """The letter of /proc; `T` too where a process below it is stopped, such as the program of an adapter. Looks at all of this machine."""
    everybody = {state.pid: state for state in processes.all_processes()} if process.pid else {}
    below = processes.descendants(process.pid, everybody.values())
    if process.plan.launcher is not None:
        own = set(processes.tagged("RANK", str(rank).__eq__)).intersection(below)
        found = next((pid for pid in below if pid in own), None)
        below = [] if found is None else processes.descendants(found, everybody.values())
    else:
        found = process.pid
    states = [everybody[pid].state for pid in (process.pid if found is None else found, *below) if pid in everybody]
    return next((state for state in states if state in FROZEN), next(iter(states), "?"))


class Ranks:
    """All processes of a plan. `on_exit(RankEnd)` is called in the loop for each that ends, also during `stop`; `on_failure(error)` for
    each that is over because its container failed."""

    def __init__(
        self,
        loop: Loop,
        engine: Engine,
        plan: EnginePlan,
        on_exit: Callable[[RankEnd], None],
        on_failure: Callable[[SlipwayError], None],
    ) -> None:
        self._loop = loop
        self._engine = engine
        self.plan = plan
        self._on_exit, self._on_failure = on_exit, on_failure
        self._oom_before = oom_kills()
        self.watched: list[Watched] = []

    def start(self, out: Path, logs: Path, host: str) -> None:
        """Start every process. `out`: where they write, and their events are read; `logs`: where we write what they print. Raises
        ContainerError; those started before it are still to be stopped."""
        for index in range(len(self.plan.processes)):
            watched = Watched(self._engine.start(self.plan, index), out, logs, host)
            self.watched.append(watched)
            self._loop.watch(watched.process.output_fd, partial(self._readable, watched))
            self._loop.watch(watched.process.exit_fd, partial(self._exited, watched))

    def _readable(self, watched: Watched) -> None:
        if not watched.read_output():
            self._loop.unwatch(watched.process.output_fd)

    def _exited(self, watched: Watched) -> None:
        failure = None
        try:
            if watched.process.exit_code() is None:
                return
        except SlipwayError as error:
            failure = error
        self._loop.unwatch(watched.process.exit_fd)
        watched.ended = True
        if failure is not None:
            watched.drain()
            self._on_failure(failure)
        else:
            self._on_exit(watched.end(watched.process.oom_kill or self._oom_count_rose()))

    def _oom_count_rose(self) -> bool:
        now = oom_kills()
        return now is not None and self._oom_before is not None and now > self._oom_before

    def poll(self, now: float) -> None:
        """Read the events that have come, and give the engine its time."""
        for watched in self.running():
            self._exited(watched)
            for beats in watched.beats.values():
                beats.poll(now)

    def look(self, now: float) -> float | None:
        """Read the events that have come, between two times of `poll`; in how many seconds it should be done again, None: not at all."""
        files = [beats for watched in self.running() for beats in watched.beats.values()]
        for file in files:
            file.poll(now)
        growing = [file for file in files if not file.stopped]
        telling = [file for file in growing if file.phase is not None or file.step is not None] or growing
        return min((file.next_look_s(now) for file in telling), default=None)

    def running(self) -> list[Watched]:
        """Those that have not ended."""
        return [watched for watched in self.watched if not watched.ended]

    def rank_runs(self) -> bool:
        """Whether any process of ranks has not ended; sidecars may run."""
        return any(watched.process.plan.ranks for watched in self.running())

    def states(self, now: float, beat_s: float, init_s: float) -> list[RankState]:
        """See Watched.states, for all that run."""
        return [state for watched in self.running() for state in watched.states(now, beat_s, init_s)]

    def is_overdue(self, now: float, beat_s: float, init_s: float) -> bool:
        """Whether a rank that runs has been silent for too long."""
        return any(watched.is_overdue(now, beat_s, init_s) for watched in self.running())

    def least_step(self) -> int | None:
        """The step that all ranks here have reached."""
        steps = [beats.step for watched in self.watched for beats in watched.beats.values()]
        return min((step for step in steps if step is not None), default=None)

    def tokens(self) -> int | None:
        """Of the last step, all ranks here together; None where one of them tells none."""
        told = [beats.tokens for watched in self.watched for beats in watched.beats.values()]
        known = [tokens for tokens in told if tokens is not None]
        return sum(known) if known and len(known) == len(told) else None

    def gpus_seen(self) -> tuple[str, ...] | None:
        """UUIDs that the container itself lists; None where nobody has asked in it."""
        return next((watched.process.gpus_seen for watched in self.watched if watched.process.gpus_seen is not None), None)

    def signal(self, number: int) -> None:
        """To every process that runs; CONT goes along, since a stopped process takes no signal but KILL."""
        for watched in self.running():
            watched.process.signal(number)
            if number != signal.SIGKILL:
                watched.process.signal(signal.SIGCONT)

    def close(self) -> None:
        """After the end of all: finish the logs, give the descriptors back. What the engine made is still to be removed."""
        for watched in self.watched:
            watched.drain()
            self._loop.unwatch(watched.process.output_fd)
            self._loop.unwatch(watched.process.exit_fd)
            watched.log.close()
            watched.process.close()
        self._engine.close(self.plan)
        self.watched = []

    def remove(self, then: Callable[[Call], None]) -> bool:
        """Take away what the engine made, in a child, since its daemon may be slow; False where this engine makes nothing."""
        made = self.plan.container is not None and bool(self.plan.container.find)
        if made:
            Call(self._loop, "removal of the container", self._engine.remove, self.plan, timeout_s=CONTAINER_REMOVAL_S).then(then)
        return made
