"""What the ranks need on their node, brought there in order: the dataset, the programs, a look at the GPUs, the image, a checkpoint."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, assert_never

import msgspec

from base.challenge import derived
from base.errors import DigestMismatch, SlipwayError, StagingError
from base.refusals import DISK_FULL
from cluster.holding import holder_of
from cluster.types import ForeignUse, GpuFault
from containers.engines import in_container
from containers.spec import CHECKPOINT, PARAMETERS
from workflow.run.link import orders, said
from workflow.run.link.calls import Call
from workflow.run.link.event_loop import Loop
from workflow.run.link.fields import What
from workflow.run.node.child import Problem, Worker
from workflow.run.node.delivery import deliver_run
from workflow.run.node.image_child import ImageChild, Loaded
from workflow.run.node.limits import COPIES_REMOVAL_S, DELIVERY_STALL_S, LOOK_S, NODE_PREPARATION_S
from workflow.run.node.node_setup import gpus_to_look_at, image_argv, prepare_node
from workflow.run.node.stage_child import PeerGroup, check_argv, group_argv, stage_argv, stage_child
from workflow.run.node.startable import is_looked_at, refuse_what_is_missing
from workflow.run.node.work_locks import PENDING
from workflow.run.node.workdir import WorkDirectory, of_run, room_bytes
from workflow.run.storage.checkpoint import fetch_file

logger = logging.getLogger(__name__)

StageEnd = Callable[[said.StagedCopy | None, Problem | None], None]
Say = Callable[[said.Said], None]
"""Tells the supervisor something."""


class Fail(Protocol):
    """Tells the supervisor that something it asked for cannot be done."""

    def __call__(self, during: str, error: str, message: str) -> None: ...


class Preparation:
    """For one attempt, after its `plan`; Staged is said once all is here that does not depend on the other nodes."""

    def __init__(self, loop: Loop, index: int, plan: orders.Plan, token: bytes, say: Say, fail: Fail) -> None:
        self.loop, self.index, self.plan, self.token, self.say, self.fail = loop, index, plan, token, say, fail
        self.allocation = plan.allocation
        self.node = plan.allocation.nodes[index]
        self.directory = WorkDirectory(Path(plan.cache), plan.tag)
        self.staged: said.StagedCopy | None = None
        self.image: Loaded | None = None
        """The pinned image as it is here: image_id, start."""
        self.cgroup_parent: str | None = None
        """The job's, where containers may be put into it."""
        self.cdi = False
        """Whether docker takes GPUs by CDI."""
        self.foreign: tuple[ForeignUse, ...] = ()
        """Processes of others on our GPUs."""
        self.faults: tuple[GpuFault, ...] = ()
        """What is wrong with our GPUs."""
        self.resumed = False
        """Whether the checkpoint of an earlier attempt is here."""
        self._holder: dict[str, Any] | None = None
        """Of the leases of what is staged, from the moment in which a stager may write one."""
        self._archive: said.StagedCopy | None = None
        """The image's archive in the cache, where the engine did not have the image."""
        self._passing: list[str] = []
        """What lies in the cache only until all nodes have it: the archive, and checkpoints."""
        self._staging: dict[What, Worker[said.StagedCopy]] = {}
        self._loading: ImageChild | None = None
        self._calls: list[Call] = []

    def look(self) -> None:
        """Before anything is staged: deliver the files of earlier attempts that wait here, then look whether the program can be started."""
        cache, run_dir = Path(self.plan.cache), Path(self.plan.run_dir)
        if any((place / PENDING).exists() for place in of_run(cache, run_dir)):
            arguments = (cache, run_dir, self.plan.group)
            self._call("delivery of what waits", deliver_run, *arguments, timeout_s=DELIVERY_STALL_S, then=self._delivered, renewed=True)
        else:
            self._look(delivered=False)

    def _delivered(self, call: Call) -> None:
        try:
            found = call.result()
        except SlipwayError as error:
            found = [(False, f"what waits on this node is not delivered: {error}")]
        for delivered, line in found:
            logger.log(logging.INFO if delivered else logging.WARNING, "%s", line)
        self._look(delivered=any(delivered for delivered, _ in found))

    def _look(self, *, delivered: bool) -> None:
        ranks = self.plan.ranks
        if ranks is None or not is_looked_at(ranks.framework):
            self.say(said.LookedAt(delivered=delivered))
            return
        arguments, then = (ranks.framework, in_container(ranks.engine)), partial(self._looked, delivered)
        self._call("look for what the program needs", refuse_what_is_missing, *arguments, timeout_s=LOOK_S, then=then)

    def _looked(self, delivered: bool, call: Call) -> None:
        try:
            call.result()
        except SlipwayError as error:
            self.fail("look", type(error).__name__, str(error))
        else:
            self.say(said.LookedAt(delivered=delivered))

    def stage(self) -> None:
        """Bring the dataset here, where there is one, under a lease that names this process. Raises StagingError."""
        from data_prep.cache.holder import as_user
        from data_prep.cache.layout import open_cache

        plan, allocation = self.plan, self.allocation
        holder = holder_of(os.getpid(), allocation.scheduler, allocation.job_id, allocation.restart_count)
        self._holder = as_user(holder, plan.run_id)
        if plan.source is None:
            open_cache(Path(plan.cache), group=plan.group)  # a stager does it otherwise: ranks work there
            self._make_directory()
        else:
            self._begin("dataset", plan.source, self.stage_ended)

    def _begin(self, what: What, source: str, then: StageEnd, *words: str) -> None:
        """Have it brought into the cache, together with the other nodes where there are some."""
        plan, nodes = self.plan, len(self.allocation.nodes)
        max_bytes = plan.cache_max_bytes if what == "dataset" else None  # all else is given back when all nodes have it
        argv = stage_argv(sys.executable, source, plan.cache, self._holder, max_bytes, plan.bytes_per_s)
        argv += group_argv(plan.group) + check_argv(plan.cache_check_s) + words
        peer_group = None
        if nodes > 1:
            address = self.allocation.nodes[self.index].address
            peer_group = PeerGroup(index=self.index, nodes=nodes, address=address, token=derived(self.token, "chunks"))
        self._staging[what] = stage_child(self.loop, what, argv, self.say, then, peer_group)

    def obey(self, order: orders.OfPreparation) -> None:
        """One of the supervisor's orders. Raises SlipwayError or OSError when it cannot be done."""
        match order:
            case orders.Stage():
                self.stage()
            case orders.MeetPeers():
                self.meet(order)
            case orders.AllStaged():
                self.staged_all()
            case orders.Fetch():
                self.fetch(order)
            case orders.Forget():
                self.forget()
            case _:
                assert_never(order)

    def meet(self, order: orders.MeetPeers) -> None:
        """Who else stages the same files, and who reads them from storage."""
        if order.what in self._staging:
            self._staging[order.what].tell(peers=msgspec.to_builtins(order.others))

    def staged_all(self) -> None:
        """Nobody needs our chunks any more, and copies of which the ranks use nothing go, before the ranks are measured."""
        for child in self._staging.values():
            child.tell(staged_all=True)
        if not self._passing or self._holder is None:
            self.say(said.StagingEnded())
            return
        from data_prep.cache.entries import remove_unused

        arguments = (Path(self.plan.cache), self._passing, self._holder, self.plan.group)
        self._call("remove what was passed on", remove_unused, *arguments, timeout_s=COPIES_REMOVAL_S, then=self._dropped)

    def _dropped(self, call: Call) -> None:
        try:
            call.result()
        except SlipwayError as error:
            logger.warning("%s: it stays in the cache until its room is needed: %s", ", ".join(self._passing), error)
        self.say(said.StagingEnded())

    def stage_ended(self, result: said.StagedCopy | None, error: Problem | None) -> None:
        """The dataset is here, or will not be."""
        if result is None:
            assert error is not None
            self.fail("stage", *error)
            return
        self.staged = result
        logger.debug("staged %s: %s of %s bytes copied", result.root, result.copied_bytes, result.bytes)
        self._make_directory()

    def _make_directory(self) -> None:
        """The attempt's own; then what else is needed here."""
        try:
            self.directory.create(self.plan.run_dir, None if self.plan.ranks is None else self.plan.ranks.cell)
        except OSError as problem:
            from data_prep.space import is_full, not_enough_space

            place, doing = self.directory.path, f"{self.directory.path} cannot be made"
            error = StagingError(f"{doing}: {problem.strerror}: {problem.filename2 or problem.filename}")
            if problem.errno in DISK_FULL and is_full(place.parent, 0):
                error = not_enough_space(place.parent, sum(room_bytes(len(self.allocation.nodes)).values()), doing)
            self.directory.remove()
            self.fail("stage", type(error).__name__, str(error))
            return
        self._prepare_node()

    def _prepare_node(self) -> None:
        """What a container needs here, and a look at the GPUs; then all is here."""
        gpus = gpus_to_look_at(self.allocation, self.index)
        ranks = self.plan.ranks
        granted = self.allocation.nodes[self.index].gpus
        if ranks is None or not (granted or ranks.framework.own or in_container(ranks.engine)):
            self._say_staged()
            return
        directory, job = (self.plan.cache, self.plan.tag), (self.allocation.scheduler, self.allocation.job_id)
        arguments = (ranks.engine, directory, ranks.framework, job, granted, gpus)
        self._call("prepare the node", prepare_node, *arguments, timeout_s=NODE_PREPARATION_S, then=self._prepared)

    def _prepared(self, call: Call) -> None:
        try:
            found = call.result()
        except SlipwayError as error:
            self.fail("stage", type(error).__name__, str(error))
            return
        self.directory.program_files = found["program_files"]
        for line in found["removed"]:
            logger.warning("%s", line)
        self.cdi, why = found["cdi"]
        logger.debug("GPUs by %s: %s", "CDI" if self.cdi else "the engine's own option", why)
        self.cgroup_parent, why = found["parent"]
        logger.debug("cgroup of containers: %s: %s", self.cgroup_parent or "the engine's, with the limits of the job copied", why)
        self.foreign = tuple(ForeignUse(*use) for use in found["foreign"])
        self.faults = tuple(GpuFault(*fault) for fault in found["faults"])
        argv = image_argv(sys.executable, self.plan)
        if argv is None:
            self._say_staged()
            return
        self.say(said.DatasetIsHere())
        try:
            self._loading = ImageChild(self.loop, argv, self.say, self._bring_archive, self._loaded)
        except OSError as problem:
            self.fail("load the image", "ContainerError", f"{argv[0]} cannot be started: {problem.strerror}")

    def _bring_archive(self) -> None:
        """The engine does not have the image."""
        assert self.plan.ranks is not None
        assert self.plan.ranks.image is not None
        try:
            self._begin("image", self.plan.ranks.image.archive, self._archive_ended, "--single")
        except OSError as problem:
            self._archive_ended(None, ("StagingError", f"{sys.executable} cannot be started: {problem.strerror}"))

    def _archive_ended(self, result: said.StagedCopy | None, error: Problem | None) -> None:
        """The archive is here, or will not be."""
        assert self.plan.ranks is not None
        assert self.plan.ranks.image is not None
        self._archive = result
        if result is not None:
            self._passing.append(Path(result.root).name)
        if self._loading is None:
            return
        if result is None:
            assert error is not None
            self._loading.kill()
            self._loaded(None, error)
            return
        self._loading.bring(str(Path(result.root, Path(self.plan.ranks.image.archive).name)))

    def _loaded(self, loaded: Loaded | None, error: Problem | None) -> None:
        self._loading = None
        if error is not None:
            self.fail("load the image", *error)
            return
        self.image = loaded
        self._say_staged()

    def _say_staged(self) -> None:
        image = None
        if self.image is not None:
            read, sent = (0, 0) if self._archive is None else (self._archive.storage_bytes, self._archive.peer_bytes)
            image = said.LoadedImage(image_id=self.image.image_id, seconds=self.image.seconds, storage_bytes=read, peer_bytes=sent)
        self.say(said.Staged(dataset=self.staged, image=image, foreign=self.foreign, faults=self.faults))

    def fetch(self, order: orders.Fetch) -> None:
        """Bring the checkpoint of an earlier attempt here, together with the other nodes where there are some, and it has its list."""
        if order.listed and len(self.allocation.nodes) > 1:
            self._begin("checkpoint", order.source, partial(self._checkpoint_ended, order), "--single", "--bytes", str(order.bytes))
        else:
            self._copy_checkpoint(order, None)

    def _checkpoint_ended(self, order: orders.Fetch, result: said.StagedCopy | None, error: Problem | None) -> None:
        """It is in the cache; where it cannot be, this node reads it from storage, which tells what is wrong with it."""
        if result is None:
            assert error is not None
            logger.warning("this node reads the checkpoint for itself: %s", error[1])
        else:
            self._passing.append(Path(result.root).name)
        self._copy_checkpoint(order, result)

    def _copy_checkpoint(self, order: orders.Fetch, brought: said.StagedCopy | None) -> None:
        source = order.source if brought is None else str(Path(brought.root, Path(order.source).name))
        target = self.directory.resume / (CHECKPOINT if order.what == "checkpoint" else PARAMETERS)
        arguments = (source, str(target), order.bytes, order.blake3)
        then = partial(self._fetched, order, brought)
        self._call(order.what, fetch_file, *arguments, timeout_s=order.limit_s, then=then)

    def _fetched(self, order: orders.Fetch, brought: said.StagedCopy | None, call: Call) -> None:
        read, sent = (order.bytes, 0) if brought is None else (brought.storage_bytes, brought.peer_bytes)
        problem = None
        try:
            call.result()
        except DigestMismatch as error:
            problem = str(error)
        except SlipwayError as error:
            if brought is None:
                self.fail("fetch", type(error).__name__, str(error))
            else:
                self._copy_alone(order, Path(brought.root).name, error)
            return
        self.resumed = problem is None and order.what == "checkpoint"
        self.say(said.Fetched(problem=problem, storage_bytes=read, peer_bytes=sent))

    def _copy_alone(self, order: orders.Fetch, name: str, error: SlipwayError) -> None:
        """Without the copy in the cache, which may have taken the room: then this node reads storage. Others find our chunks elsewhere."""
        from data_prep.cache.entries import remove_unused

        logger.warning("this node reads the checkpoint for itself: %s", error)
        self._staging.pop("checkpoint").kill()
        self._passing.remove(name)
        arguments = (Path(self.plan.cache), [name], self._holder, self.plan.group)
        then = partial(self._removed_copy, order)
        self._call("remove the checkpoint's copy", remove_unused, *arguments, timeout_s=COPIES_REMOVAL_S, then=then)

    def _removed_copy(self, order: orders.Fetch, call: Call) -> None:
        try:
            call.result()
        except SlipwayError as error:
            logger.warning("the checkpoint's copy stays in the cache until its room is needed: %s", error)
        self._copy_checkpoint(order, None)

    def forget(self) -> None:
        """The checkpoint is not whole on another node: none is used."""
        self.resumed = False
        child = self._staging.pop("checkpoint", None)
        if child is not None:
            child.kill()
        (self.directory.resume / CHECKPOINT).unlink(missing_ok=True)

    def release(self) -> None:
        """What was staged may go from here on, as far as we are concerned, also what a stager did not tell of before it was killed."""
        if self._holder is not None:
            from data_prep.cache.lease import release_all

            release_all(Path(self.plan.cache), self._holder)
            self._holder = self.staged = None

    def stop(self) -> None:
        """End what is under way."""
        for child in self._staging.values():
            child.kill()
        if self._loading is not None:
            self._loading.kill()
            self._loading = None
        for call in self._calls:
            call.abandon()
        self._staging = {}

    def _call(
        self,
        what: str,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float,
        then: Callable[[Call], None],
        renewed: bool = False,
    ) -> None:
        """In a child, which goes on until `stop`."""
        self._calls.append(Call(self.loop, what, function, *arguments, timeout_s=timeout_s, renewed=renewed).then(then))
