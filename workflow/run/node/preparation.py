"""What the ranks need on their node, brought there in order: the dataset, the programs, a look at the GPUs, the image, a checkpoint."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, assert_never

import msgspec

from base.challenge import derived
from base.errors import DigestMismatch, SlipwayError
from cluster.holding import holder_of
from cluster.types import ForeignUse
from containers.engines import in_container
from containers.spec import CHECKPOINT
from workflow.run.link import orders, said
from workflow.run.link.calls import Call
from workflow.run.link.event_loop import Loop
from workflow.run.link.fields import What
from workflow.run.node.image_child import ImageChild, Loaded
from workflow.run.node.limits import ARCHIVE_REMOVAL_S, NODE_PREPARATION_S
from workflow.run.node.node_setup import gpus_to_look_at, image_argv, prepare_node
from workflow.run.node.stage_child import PeerGroup, StageChild, check_argv, group_argv, stage_argv
from workflow.run.node.workdir import WorkDirectory
from workflow.run.storage.checkpoint import fetch_checkpoint

logger = logging.getLogger(__name__)

StageEnd = Callable[[said.StagedFiles | None, tuple[str, str] | None], None]
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
        self.staged: said.StagedFiles | None = None
        self.image: Loaded | None = None
        """The pinned image as it is here: image_id, start."""
        self.cgroup_parent: str | None = None
        """The job's, where containers may be put into it."""
        self.cdi = False
        """Whether docker takes GPUs by CDI."""
        self.foreign: tuple[ForeignUse, ...] = ()
        """Processes of others on our GPUs."""
        self.resumed = False
        """Whether the checkpoint of an earlier attempt is here."""
        self._holder: dict[str, Any] | None = None
        """Of the leases of what is staged, from the moment in which a stager may write one."""
        self._archive: said.StagedFiles | None = None
        """The image's archive in the cache, where the engine did not have the image."""
        self._staging: dict[What, StageChild] = {}
        self._preparing: Call | None = None
        self._loading: ImageChild | None = None
        self._fetching: Call | None = None
        self._dropping: Call | None = None

    def stage(self) -> None:
        """Bring the dataset here, under a lease that names this process."""
        from data_prep.cache.holder import as_user

        plan, allocation = self.plan, self.allocation
        holder = holder_of(os.getpid(), allocation.scheduler, allocation.job_id, allocation.restart_count)
        self._holder = as_user(holder, plan.run_id)
        self._begin("dataset", plan.source, self.stage_ended)

    def _begin(self, what: What, source: str, then: StageEnd, *words: str) -> None:
        """Have it brought into the cache, together with the other nodes where there are some."""
        plan, nodes = self.plan, len(self.allocation.nodes)
        max_bytes = plan.cache_max_bytes if what == "dataset" else None  # an archive is given back when all nodes have loaded it
        argv = stage_argv(sys.executable, source, plan.cache, self._holder, max_bytes, plan.bytes_per_s)
        argv += group_argv(plan.group) + check_argv(plan.cache_check_s) + words
        peer_group = None
        if nodes > 1:
            address = self.allocation.nodes[self.index].address
            peer_group = PeerGroup(index=self.index, nodes=nodes, address=address, token=derived(self.token, "chunks"))
        self._staging[what] = StageChild(self.loop, what, argv, self.say, then, peer_group)

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
        """Nobody needs our chunks any more, and the image's archive is of no use: the engine has what was in it."""
        for child in self._staging.values():
            child.tell(staged_all=True)
        if self._archive is not None and self._holder is not None:
            from data_prep.cache import remove_unused

            arguments = (Path(self.plan.cache), Path(self._archive.root).name, self._holder, self.plan.group)
            self._dropping = Call(self.loop, "remove the image's archive", remove_unused, *arguments, timeout_s=ARCHIVE_REMOVAL_S)
            self._dropping.then = self._dropped

    def _dropped(self, call: Call) -> None:
        self._dropping = None
        try:
            call.result()
        except SlipwayError as error:
            logger.warning("the image's archive stays in the cache until its room is needed: %s", error)

    def stage_ended(self, result: said.StagedFiles | None, error: tuple[str, str] | None) -> None:
        """The dataset is here, or will not be."""
        if result is None:
            assert error is not None
            self.fail("stage", *error)
            return
        self.staged = result
        try:
            self.directory.create(self.plan.run_dir, None if self.plan.ranks is None else self.plan.ranks.cell)
        except OSError as problem:
            self.fail("stage", "StagingError", f"{self.directory.path} cannot be made: {problem.strerror}: {problem.filename}")
            return
        logger.debug("staged %s: %s of %s bytes copied", result.root, result.copied_bytes, result.bytes)
        self._prepare_node()

    def _prepare_node(self) -> None:
        """What a container needs here, and a look at the GPUs; then all is here."""
        gpus = gpus_to_look_at(self.allocation, self.index)
        if self.plan.ranks is None or not (gpus or in_container(self.plan.ranks.engine)):
            self._say_staged()
            return
        granted = self.allocation.nodes[self.index].gpus
        directory, job = (self.plan.cache, self.plan.tag), (self.allocation.scheduler, self.allocation.job_id)
        arguments = (self.plan.ranks.engine, directory, self.plan.ranks.framework.folder, job, granted, gpus)
        self._preparing = Call(self.loop, "prepare the node", prepare_node, *arguments, timeout_s=NODE_PREPARATION_S)
        self._preparing.then = self._prepared

    def _prepared(self, call: Call) -> None:
        self._preparing = None
        try:
            found = call.result()
        except SlipwayError as error:
            self.fail("stage", type(error).__name__, str(error))
            return
        for line in found["removed"]:
            logger.warning("%s", line)
        self.cdi, why = found["cdi"]
        logger.debug("GPUs by %s: %s", "CDI" if self.cdi else "the engine's own option", why)
        self.cgroup_parent, why = found["parent"]
        logger.debug("cgroup of containers: %s: %s", self.cgroup_parent or "the engine's, with the limits of the job copied", why)
        self.foreign = tuple(ForeignUse(*use) for use in found["foreign"])
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

    def _archive_ended(self, result: said.StagedFiles | None, error: tuple[str, str] | None) -> None:
        """The archive is here, or will not be."""
        assert self.plan.ranks is not None
        assert self.plan.ranks.image is not None
        self._archive = result
        if self._loading is None:
            return
        if result is None:
            assert error is not None
            self._loading.kill()
            self._loaded(None, error)
            return
        self._loading.bring(str(Path(result.root, Path(self.plan.ranks.image.archive).name)))

    def _loaded(self, loaded: Loaded | None, error: tuple[str, str] | None) -> None:
        self._loading = None
        if error is not None:
            self.fail("load the image", *error)
            return
        self.image = loaded
        self._say_staged()

    def _say_staged(self) -> None:
        assert self.staged is not None
        image = None
        if self.image is not None:
            read, sent = (0, 0) if self._archive is None else (self._archive.storage_bytes, self._archive.peer_bytes)
            image = said.LoadedImage(image_id=self.image.image_id, seconds=self.image.seconds, storage_bytes=read, peer_bytes=sent)
        self.say(said.Staged(dataset=self.staged, image=image, foreign=self.foreign))

    def fetch(self, order: orders.Fetch) -> None:
        """Bring the checkpoint of an earlier attempt here."""
        arguments = (order.source, str(self.directory.resume / CHECKPOINT), order.bytes, order.blake3)
        self._fetching = Call(self.loop, "checkpoint", fetch_checkpoint, *arguments, timeout_s=order.limit_s)
        self._fetching.then = self._fetched

    def _fetched(self, call: Call) -> None:
        self._fetching = None
        try:
            call.result()
        except DigestMismatch as error:
            self.say(said.Fetched(problem=str(error)))
        except SlipwayError as error:
            self.fail("fetch", type(error).__name__, str(error))
        else:
            self.resumed = True
            self.say(said.Fetched(problem=None))

    def forget(self) -> None:
        """The checkpoint is not whole on another node: none is used."""
        self.resumed = False
        (self.directory.resume / CHECKPOINT).unlink(missing_ok=True)

    def release(self) -> None:
        """The dataset may go from here on, as far as we are concerned; leases of the dead go with ours."""
        if self._holder is not None:
            from data_prep.cache.lease import release_all

            for path in (self.plan.source, *([] if self._archive is None else [self._archive.root])):
                release_all(Path(self.plan.cache), Path(path).name, self._holder)
            self._holder = self.staged = None

    def stop(self) -> None:
        """End what is under way."""
        for child in self._staging.values():
            child.kill()
        if self._loading is not None:
            self._loading.kill()
        for call in (self._preparing, self._fetching, self._dropping):
            if call is not None:
                call.abandon()
        self._staging = {}
        self._loading, self._preparing, self._fetching, self._dropping = None, None, None, None
