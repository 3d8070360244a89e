"""What a node program does for the supervisor: one method per order, one answer to each."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from base.challenge import derived
from base.errors import DigestMismatch, SlipwayError
from base.logs import private_umask
from cluster import processes
from cluster.types import Allocation
from containers.engines import get_engine
from containers.engines.bare import NAME as BARE
from containers.spec import CHECKPOINT, STOP
from workflow.run.calls import Call
from workflow.run.image_child import Answer, ImageChild
from workflow.run.in_container import PREPARE_S, for_this_node, gpus_to_look_at, image_argv, prepare_node, who_we_are
from workflow.run.ladder import Ladder
from workflow.run.loop import Loop
from workflow.run.outcome import RankEnd
from workflow.run.plan import container_spec
from workflow.run.preflight_child import PreflightChild
from workflow.run.ranks import Ranks
from workflow.run.rendezvous import Reservation
from workflow.run.resume import fetch_checkpoint
from workflow.run.stage_child import Company, StageChild, stage_argv
from workflow.run.workdir import WorkDirectory

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0
MOST_STRANGERS: Final = 20
STAGED: Final = ("digest", "bytes", "copied_bytes", "storage_bytes", "peer_bytes", "lost_peers", "resumed_bytes", "hit", "seconds")


class Say(Protocol):
    """Tells the supervisor something."""

    def __call__(self, what: str, **fields: Any) -> None: ...


class NodeWork:
    """The state of one node. Methods named `do_...` take an order's message, and raise SlipwayError or OSError when it cannot be done."""

    def __init__(self, loop: Loop, index: int, say: Say, log_text: Callable[[], str]) -> None:
        self.loop, self.index, self.say, self.log_text = loop, index, say, log_text
        self.orders: dict[str, Any] = {}
        self.token = b""
        """Of this attempt."""
        self.preflight: PreflightChild | None = None
        self.staging: StageChild | None = None
        self.staged: dict[str, Any] | None = None
        self.reservation: Reservation | None = None
        self.ranks: Ranks | None = None
        self.fetching: Call | None = None
        self.resumed = False
        """Whether the checkpoint of an earlier attempt is here."""
        self.pushing: Call | None = None
        self.preparing: Call | None = None
        self.loading: ImageChild | None = None
        self.image: Answer | None = None
        """The pinned image as it is here: image_id, start."""
        self.cgroup_parent: str | None = None
        """The job's, where containers may be put into it."""
        self.foreign: list[list[str]] = []
        """UUID and words for each process of others on our GPUs."""
        self.directory: WorkDirectory | None = None
        self.ladder: Ladder | None = None
        self._said_overdue = self._said_failed = self._said_gpus = False

    def fail(self, during: str, error: str, message: str) -> None:
        """Tell the supervisor that something it asked for cannot be done."""
        logger.error("%s: %s", during, message)
        self.say("failed", during=during, error=error, message=message)

    # -- before the ranks

    def do_preflight(self, message: dict[str, Any]) -> None:
        """Have a child obey an order of the preflight; None: it is over."""
        order = message["order"]
        if order is None:
            self._end_preflight()
            return
        if self.preflight is None:
            self.preflight = PreflightChild(self.loop, self._probed, lambda why: self.fail("preflight", "NodeLost", why))
            order = {**order, "token": derived(self.token, "preflight").hex()}
        self.preflight.send(order)

    def _probed(self, answer: dict[str, Any]) -> None:
        if answer["say"] == "failed":
            self._end_preflight()
            self.fail("preflight", "NodeLost", answer["problem"])
        else:
            self.say("preflight", answer=answer)

    def _end_preflight(self) -> None:
        if self.preflight is not None:
            self.preflight.close()
            self.preflight = None

    def do_plan(self, message: dict[str, Any]) -> None:
        """Take the orders of this attempt; from here on we run on our own cores only."""
        self.orders = message
        self.allocation = Allocation.from_json(message["allocation"])
        self.node = self.allocation.nodes[self.index]
        private_umask(message["group"])
        if self.node.cores:
            os.sched_setaffinity(0, self.node.cores)
        self.directory = WorkDirectory(Path(message["cache"]), message["tag"])

    def do_stage(self, _message: dict[str, Any]) -> None:
        """Bring the dataset here, under a lease that names this process."""
        state = processes.state_of(os.getpid())
        holder = {
            "run_id": self.orders["run_id"],
            "pid": os.getpid(),
            "start_time": state.start if state else None,
            "boot_id": processes.boot_id(),
            "uid": os.geteuid(),
            "job_id": self.allocation.job_id,
            "scheduler": self.allocation.scheduler,
        }
        orders = self.orders
        argv = stage_argv(sys.executable, orders["source"], orders["cache"], holder, orders["cache_max_bytes"], orders["bytes_per_s"])
        nodes = len(self.allocation.nodes)
        company = None
        if nodes > 1:
            company = Company(index=self.index, nodes=nodes, address=self.node.address, token=derived(self.token, "chunks"))
        self.staging = StageChild(self.loop, argv, self, company)

    def stage_progress(self, done: int, total: int) -> None:
        """How far the copy is."""
        self.say("progress", done=done, total=total)

    def stage_meets(self, what: str, value: Any) -> None:
        """Where the copy listens for the other nodes, or that it waits for somebody else's."""
        self.say(what, **(value if isinstance(value, dict) else {}))

    def do_peers(self, message: dict[str, Any]) -> None:
        """Who else stages the dataset, and who reads it from storage."""
        if self.staging is not None:
            self.staging.tell(peers=message["peers"])

    def do_staged_all(self, _message: dict[str, Any]) -> None:
        """Nobody needs our chunks any more."""
        if self.staging is not None:
            self.staging.tell(staged_all=True)

    def stage_ended(self, result: dict[str, Any] | None, error: tuple[str, str] | None) -> None:
        """The dataset is here, or will not be."""
        if len(self.allocation.nodes) == 1:
            self.staging = None
        if result is None:
            assert error is not None
            self.fail("stage", *error)
            return
        self.staged = result
        assert self.directory is not None
        try:
            self.directory.create(self.orders["cell_document"], self.orders["run_id"])
        except OSError as problem:
            self.fail("stage", "StagingError", f"{self.directory.path} cannot be made: {problem.strerror}: {problem.filename}")
            return
        logger.debug("staged %s: %s of %s bytes copied", result["root"], result["copied_bytes"], result["bytes"])
        self._prepare_node()

    def _prepare_node(self) -> None:
        """What a container needs here, and a look at the GPUs; then all is here."""
        gpus = gpus_to_look_at(self.allocation, self.index)
        if self.orders["engine"] == BARE and not gpus:
            self._say_staged()
            return
        directory, job = (self.orders["cache"], self.orders["tag"]), (self.allocation.scheduler, self.allocation.job_id)
        arguments = (self.orders["engine"], directory, self.orders["framework"]["folder"], job, gpus)
        self.preparing = Call(self.loop, "prepare the node", prepare_node, *arguments, timeout_s=PREPARE_S)
        self.preparing.then = self._prepared

    def _prepared(self, call: Call) -> None:
        self.preparing = None
        try:
            found = call.result()
        except SlipwayError as error:
            self.fail("stage", type(error).__name__, str(error))
            return
        for line in found["removed"]:
            logger.warning("%s", line)
        self.cgroup_parent, why = found["parent"]
        logger.debug("cgroup of containers: %s: %s", self.cgroup_parent or "the engine's, with the limits of the job copied", why)
        self.foreign = found["foreign"]
        argv = image_argv(sys.executable, self.orders)
        if argv is None:
            self._say_staged()
            return
        self.say("dataset")
        try:
            self.loading = ImageChild(self.loop, argv, self.say, self._loaded)
        except OSError as problem:
            self.fail("load the image", "ContainerError", f"{argv[0]} cannot be started: {problem.strerror}")

    def do_read_image(self, message: dict[str, Any]) -> None:
        """It is our turn to read the image's archive."""
        if self.loading is not None:
            self.loading.read(message["bytes_per_s"])

    def _loaded(self, answer: Answer | None, error: tuple[str, str] | None) -> None:
        self.loading = None
        if error is not None:
            self.fail("load the image", *error)
            return
        self.image = answer
        self._say_staged()

    def _say_staged(self) -> None:
        assert self.staged is not None
        image = {} if self.image is None else {"image_id": self.image["image_id"], "image_s": self.image["seconds"]}
        self.say("staged", **{key: self.staged[key] for key in STAGED}, **image, foreign=self.foreign)

    def do_fetch(self, message: dict[str, Any]) -> None:
        """Bring the checkpoint of an earlier attempt here."""
        assert self.directory is not None
        arguments = (message["source"], str(self.directory.resume / CHECKPOINT), message["bytes"], message["blake3"])
        self.fetching = Call(self.loop, "checkpoint", fetch_checkpoint, *arguments, timeout_s=message["limit_s"])
        self.fetching.then = self._fetched

    def _fetched(self, call: Call) -> None:
        self.fetching = None
        try:
            call.result()
        except DigestMismatch as error:
            self.say("fetched", problem=str(error))
        except SlipwayError as error:
            self.fail("fetch", type(error).__name__, str(error))
        else:
            self.resumed = True
            self.say("fetched", problem=None)

    def do_forget(self, _message: dict[str, Any]) -> None:
        """The checkpoint is not whole on another node: none is used."""
        assert self.directory is not None
        self.resumed = False
        (self.directory.resume / CHECKPOINT).unlink(missing_ok=True)

    def do_reserve(self, _message: dict[str, Any]) -> None:
        """On the head: bind the rendezvous port before anybody is told of it."""
        self.reservation = Reservation(self.node.address, self.orders["tag"])
        self.say("reserved", address=self.node.address, port=self.reservation.port)

    # -- the ranks

    def do_start(self, message: dict[str, Any]) -> None:
        """Start the ranks of this node."""
        assert self.directory is not None
        assert self.staged is not None
        framework, bare = self.orders["framework"], self.orders["engine"] == BARE
        paths = self.directory.paths(self.staged["root"], framework["folder"] if bare else str(self.directory.program))
        work = {"tag": self.orders["tag"], "framework": framework, "cell": self.orders["cell_document"], "deadline": message["deadline"]}
        work["resumed"] = self.resumed
        if not bare:
            work |= who_we_are(self.allocation)
        if self.image is not None:
            work["image_id"] = self.image["start"]
        spec = container_spec(work, self.allocation, self.index, paths, (message["master"][0], message["master"][1]))
        engine = get_engine(self.orders["engine"])
        spec = for_this_node(engine.NAME, spec, self.allocation.memory_per_node_bytes, self.cgroup_parent)
        plan = engine.plan(spec, os.environ)
        self.ranks = Ranks(self.loop, engine, plan, self._rank_ended, self._container_failed)
        self.ranks.start(self.directory.out, self.node.name)
        logger.debug("started %s", ", ".join(process.name for process in self.ranks.plan.processes))
        self.say("started")
        self.loop.every(min(TICK_S, self.orders["beat_s"] / 4), self._tick)

    def _rank_ended(self, end: RankEnd) -> None:
        logger.debug("ranks %s ended with %s", end.ranks, end.exit_code)
        self._say_gpus()
        self.say("exit", end=end._asdict(), now=time.time())
        if self.ladder is not None:
            self.ladder.rank_ended()

    def _container_failed(self, error: SlipwayError) -> None:
        """Said once: all processes of the node are in it."""
        self._say_gpus()
        if not self._said_failed:
            self._said_failed = True
            self.fail("start", type(error).__name__, str(error))
        if self.ladder is not None:
            self.ladder.rank_ended()

    def _say_gpus(self) -> None:
        """Once: what the container itself says that it holds."""
        seen = self.ranks.gpus_seen() if self.ranks is not None and not self._said_gpus else None
        if seen is not None:
            self._said_gpus = True
            self.say("gpus", seen=list(seen))

    def _tick(self) -> None:
        """Watch the ranks' events, and show that we live."""
        if self.ranks is None or self.directory is None:
            return
        now = time.monotonic()
        self.directory.say_alive()
        self.ranks.poll(now)
        self._say_gpus()
        if self.reservation is not None and self.ranks.least_step() is not None:
            self.reservation.release()
            self.reservation = None
        if self._said_overdue or self.ladder is not None:
            return
        looks = self._looks()
        if any(look["silent_s"] > look["limit_s"] for look in looks):
            self._said_overdue = True
            self.say("overdue", looks=looks)

    def _looks(self) -> list[dict[str, Any]]:
        return self.ranks.looks(time.monotonic(), self.orders["beat_s"], self.orders["init_s"]) if self.ranks else []

    def do_checkpoint(self, _message: dict[str, Any]) -> None:
        """Ask rank 0 for a checkpoint, unless it has not done a step."""
        step = self.least_step()
        if step is not None and self.directory is not None:
            (self.directory.resume / STOP).touch()
        self.say("saving", step=step)

    def do_look(self, _message: dict[str, Any]) -> None:
        """Tell how the ranks are."""
        self.say("looks", looks=self._looks())

    def least_step(self) -> int | None:
        """The step that all ranks here have reached."""
        return self.ranks.least_step() if self.ranks else None

    # -- the end

    def do_stop(self, _message: dict[str, Any]) -> None:
        """End all that runs here."""
        self.stop(lambda clean: self.say("stopped", clean=clean))

    def stop(self, then: Callable[[bool], None]) -> None:
        """Down the ladder; `then(clean)` within 10 s."""
        if self.preflight is not None:
            self.preflight.kill()
            self.preflight = None
        if self.staging is not None:
            self.staging.kill()
            self.staging = None
        if self.loading is not None:
            self.loading.kill()
            self.loading = None
        for call in (self.fetching, self.pushing, self.preparing):
            if call is not None:
                call.abandon()
        self.fetching = self.pushing = self.preparing = None
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None
        if self.ladder is not None and not self.ladder.finished:
            self.ladder.also(then)
            return
        ranks, self.ladder = self.ranks, None
        self.ladder = Ladder(self.loop, ranks, lambda clean: self._stopped(then, clean))

    def _stopped(self, then: Callable[[bool], None], clean: bool) -> None:
        self.ranks = None
        then(clean)

    def do_collect(self, _message: dict[str, Any]) -> None:
        """Complete the directory that is to be pushed."""
        strangers: list[str] = []
        if self.directory is not None and self.directory.exists():
            strangers = self.directory.strangers()
            for stranger in strangers:
                logger.error("not ours: %s", stranger)
            self.directory.collect(self.index, self.log_text())
        self.say("collected", strangers=strangers[:MOST_STRANGERS])

    def do_push(self, message: dict[str, Any]) -> None:
        """Copy what is to be pushed into the directory `part` on storage."""
        if self.directory is None or not self.directory.exists():
            self.say("pushed", files=[])
            return
        self.pushing = Call(self.loop, "push", push, str(self.directory.out), message["part"], timeout_s=message["limit_s"])
        self.pushing.then = self._pushed

    def _pushed(self, call: Call) -> None:
        self.pushing = None
        try:
            self.say("pushed", files=call.result())
        except SlipwayError as error:
            self.fail("push", type(error).__name__, str(error))

    def do_release(self, _message: dict[str, Any]) -> None:
        """Drop the lease of the dataset."""
        self.release()
        self.say("released")

    def release(self) -> None:
        """The dataset may go from here on, as far as we are concerned; leases of the dead go with ours."""
        lease = (self.staged or {}).get("lease")
        if lease:
            from data_prep.cache.layout import open_cache
            from data_prep.cache.lease import live_leases, release

            cache = Path(self.orders["cache"])
            release(cache, lease)
            live_leases(open_cache(cache), lease.partition("/")[0])
            self.staged = None

    def end(self, pending: dict[str, Any] | None) -> None:
        """Remove the work directory, or keep it with the note `pending` where its result could not be pushed."""
        if self.directory is None or not self.directory.exists():
            return
        if pending is not None:
            self.directory.keep(pending)
        else:
            self.directory.remove()


def push(out: str, part: str) -> list[dict[str, Any]]:
    """In a child: copy the directory `out` to storage; path, bytes, hash of every file."""
    from data_prep.push import push_files

    return list(push_files(Path(out), Path(part)))
