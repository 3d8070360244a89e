"""Prepare a node for its ranks, in order: end containers and processes of older attempts, stage the dataset, programs, GPUs, image and
checkpoint."""

import dataclasses
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec
from msgspec.structs import asdict

from base import handshake, system
from base.errors import DigestMismatch, NodeLost, SlipwayError, StagingError, TrainingFailed
from cluster import processes
from cluster.holder import holder_of
from cluster.schedulers import LOCAL
from cluster.types import CacheUser, GpuFault, OtherUse
from containers.engines import STORES, in_container
from containers.spec import CHECKPOINT, PARAMETERS, ContainerSpec
from workflow.run.link import commands, reports
from workflow.run.link.event_loop import Call, Loop
from workflow.run.node import limits, program_check
from workflow.run.node.child import ImageLoad, Loaded, Problem, Stager, WorkLine
from workflow.run.node.ranks import Reservation
from workflow.run.node.workdir import PENDING, WorkDirectory, deliver_run, of_run
from workflow.run.plan import TAG, Framework, port_names
from workflow.run.storage.attempt import fetch_file

logger = logging.getLogger(__name__)

StageEnd = Callable[[reports.StagedCopy | None, Problem | None], None]
Reporter = Callable[[reports.Report], None]
Fail = Callable[[str, str, str], None]
"""Tells the supervisor that something it asked for cannot be done: what, the name of an error, the message."""


class Preparation:
    """The preparation of one attempt, after its `plan`; Staged is sent once all is here that does not depend on the other nodes."""

    def __init__(self, loop: Loop, index: int, plan: commands.Plan, token: bytes, report: Reporter, fail: Fail) -> None:
        self.loop, self.index, self.plan, self.token, self.report, self.fail = loop, index, plan, token, report, fail
        self.allocation = plan.allocation
        self.node = plan.allocation.nodes[index]
        self.directory = WorkDirectory(Path(plan.cache), plan.tag)
        self.staged: reports.StagedCopy | None = None
        self.image: Loaded | None = None
        self.cdi = False
        """True if docker takes GPUs by CDI."""
        self.other_use: tuple[OtherUse, ...] = ()
        self.faults: tuple[GpuFault, ...] = ()
        self.resumed = False
        self._reservation: Reservation | None = None
        self._holder: CacheUser | None = None
        """The holder of the leases of what is staged, from the moment in which a stager may write one."""
        self._archive: reports.StagedCopy | None = None
        """The image's archive, which lies in the cache only until all nodes have it, where the engine did not have the image."""
        self._staging: dict[reports.What, Stager] = {}
        self._loading: ImageLoad | None = None
        self._calls: list[Call] = []

    def look(self) -> None:
        """Deliver the files of earlier attempts that wait here, then check whether the program can be started."""
        cache, run_dir = Path(self.plan.cache), Path(self.plan.run_dir)
        if any((place / PENDING).exists() for place in of_run(cache, run_dir)):
            arguments = (cache, run_dir, self.plan.group)
            self._call(
                "delivery of what waits", deliver_run, *arguments, timeout_s=limits.DELIVERY_STALL_S, then=self._delivered, renewed=True
            )
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
        if ranks is None or not program_check.is_looked_at(ranks.framework):
            self.report(reports.LookedAt(delivered=delivered))
            return
        arguments, then = (ranks.framework, in_container(ranks.engine)), partial(self._looked, delivered)
        self._call("look for what the program needs", program_check.refuse_what_is_missing, *arguments, timeout_s=limits.LOOK_S, then=then)

    def _looked(self, delivered: bool, call: Call) -> None:
        try:
            call.result()
        except SlipwayError as error:
            self.fail("look", type(error).__name__, str(error))
        else:
            self.report(reports.LookedAt(delivered=delivered))

    def stage(self) -> None:
        """Bring the dataset here, where there is one, under a lease that names this process. Raises StagingError."""
        from data_prep.cache.layout import open_cache
        from data_prep.cache.lock import as_user

        plan, allocation = self.plan, self.allocation
        holder = holder_of(os.getpid(), allocation.scheduler, allocation.job_id, allocation.restart_count)
        self._holder = as_user(holder, plan.run_id)
        if plan.source is None:
            open_cache(Path(plan.cache), group=plan.group)  # a stager does it otherwise: ranks work there
            self._make_directory()
        else:
            self._begin("dataset", plan.source, self.stage_ended)

    def _begin(self, what: reports.What, source: str, then: StageEnd) -> None:
        is_shared = len(self.allocation.nodes) > 1
        argv = stage_argv(sys.executable, self.plan, self.index, source, self._holder, single=what == "image")
        child = self._staging[what] = Stager(self.loop, argv, partial(self._hear, what), then, at_once=is_shared)
        if is_shared:
            child.feed(handshake.derived(self.token, "chunks").hex().encode())

    def _hear(self, what: reports.What, line: WorkLine[Any]) -> None:
        """Tell the supervisor how far a child is, and bring what it wants."""
        if line.progress is not None:
            self.report(reports.Progress(what=what, done=line.progress[0], total=line.progress[1]))
        if line.waiting:
            self.report(reports.Waiting(what=what))
        if line.listening is not None:
            self.report(reports.Listening(what=what, **asdict(line.listening)))
        if line.wants is not None:
            self.report(reports.Progress(what=what, done=0, total=line.wants))
            self._bring_archive()

    def obey(self, order: commands.PreparationCommand) -> None:
        """Execute one of the supervisor's commands. Raises SlipwayError or OSError."""
        match order:
            case commands.Stage():
                self.stage()
            case commands.LoadImage():
                self.load_image()
            case commands.MeetPeers():
                self.meet(order)
            case commands.AllStaged():
                self.staged_all()
            case commands.Fetch():
                self.fetch(order)
            case commands.Forget():
                self.forget()
            case _:
                assert_never(order)

    def meet(self, order: commands.MeetPeers) -> None:
        if order.what in self._staging:
            self._staging[order.what].send(peers=msgspec.to_builtins(order.others))

    def staged_all(self) -> None:
        """Stop passing chunks on, and remove copies of which the ranks use nothing, before the ranks are measured."""
        for child in self._staging.values():
            child.send(staged_all=True)
        if self._archive is None or self._holder is None:
            self.report(reports.StagingEnded())
            return
        from data_prep.cache.entries import remove_unused

        arguments = (Path(self.plan.cache), [Path(self._archive.root).name], self._holder, self.plan.group)
        self._call("remove what was passed on", remove_unused, *arguments, timeout_s=limits.COPIES_REMOVAL_S, then=self._dropped)

    def _dropped(self, call: Call) -> None:
        try:
            call.result()
        except SlipwayError as error:
            logger.warning("the image's archive stays in the cache until its room is needed: %s", error)
        self.report(reports.StagingEnded())

    def stage_ended(self, result: reports.StagedCopy | None, error: Problem | None) -> None:
        if result is None:
            assert error is not None
            self.fail("stage", *error)
            return
        self.staged = result
        logger.debug("staged %s: %s of %s bytes copied", result.root, result.copied_bytes, result.bytes)
        self._make_directory()

    def _make_directory(self) -> None:
        try:
            ranks = self.plan.ranks
            cell, library = (None, ()) if ranks is None else (ranks.cell, ranks.framework.library)
            self.directory.create(self.plan.run_dir, cell, library)
        except OSError as problem:
            from data_prep.free_space import is_full, not_enough_space

            place, doing = self.directory.path, f"{self.directory.path} cannot be made"
            error = StagingError(f"{doing}: {problem.strerror}: {problem.filename2 or problem.filename}")
            if problem.errno in system.DISK_FULL and is_full(place.parent, 0):
                error = not_enough_space(place.parent, 0, doing)
            self.directory.remove()
            self.fail("stage", type(error).__name__, str(error))
            return
        self._prepare_node()

    def _prepare_node(self) -> None:
        ranks = self.plan.ranks
        granted = self.node.gpus
        gpus = granted if self.allocation.scheduler == LOCAL else ()  # elsewhere the grant has told who else uses them
        if ranks is None or not (granted or ranks.framework.own or in_container(ranks.engine)):
            self._report_staged()
            return
        arguments = (ranks.engine, (self.plan.cache, self.plan.tag), ranks.framework, granted, gpus)
        self._call("prepare the node", prepare_node, *arguments, timeout_s=limits.NODE_PREPARATION_S, then=self._prepared)

    def _prepared(self, call: Call) -> None:
        try:
            found: PreparedNode = call.result(PreparedNode)
        except SlipwayError as error:
            self.fail("stage", type(error).__name__, str(error))
            return
        for line in found.removed:
            logger.warning("%s", line)
        self.cdi = found.cdi
        self.other_use, self.faults = found.other_use, found.faults
        if self.plan.ranks is None or self.plan.ranks.image is None:  # then what the engine has under its name is started
            self._report_staged()
        else:
            self.report(reports.DatasetIsHere())

    def load_image(self) -> None:
        """Load the pinned image. Its archive is staged only from here on: a stager holds its lock, for which other runs may wait."""
        from workflow.run.images import load_argv

        ranks = self.plan.ranks
        assert ranks is not None
        assert ranks.image is not None
        argv = load_argv(sys.executable, ranks.image.archive, ranks.engine, ranks.image.cache)
        try:
            self._loading = ImageLoad(self.loop, argv, partial(self._hear, "image"), self._loaded)
        except OSError as problem:
            self.fail("load the image", "ContainerError", f"{argv[0]} cannot be started: {problem.strerror}")

    def _bring_archive(self) -> None:
        assert self.plan.ranks is not None
        assert self.plan.ranks.image is not None
        try:
            self._begin("image", self.plan.ranks.image.archive, self._archive_ended)
        except OSError as problem:
            self._archive_ended(None, ("StagingError", f"{sys.executable} cannot be started: {problem.strerror}"))

    def _archive_ended(self, result: reports.StagedCopy | None, error: Problem | None) -> None:
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
        self.report(reports.Progress(what="image", done=result.bytes, total=result.bytes))
        self._loading.send(archive=str(Path(result.root, Path(self.plan.ranks.image.archive).name)))

    def _loaded(self, loaded: Loaded | None, error: Problem | None) -> None:
        self._loading = None
        if error is not None:
            self.fail("load the image", *error)
            return
        self.image = loaded
        self._report_staged()

    def _report_staged(self) -> None:
        """Bind the ports of the ranks, which nobody else gets until they use them, and report that all is here."""
        ranks, image = self.plan.ranks, None
        names = () if ranks is None else port_names(ranks.framework, ranks.cell, self.index)
        try:
            self._reservation = Reservation(self.node.address, len(names))
        except NodeLost as error:
            self.fail("stage", NodeLost.__name__, str(error))
            return
        if self.image is not None:
            read, sent = (0, 0) if self._archive is None else (self._archive.storage_bytes, self._archive.peer_bytes)
            image = reports.LoadedImage(image_id=self.image.image_id, seconds=self.image.seconds, storage_bytes=read, peer_bytes=sent)
        ports = self._reservation.ports
        self.report(reports.Staged(dataset=self.staged, image=image, other_use=self.other_use, faults=self.faults, ports=ports))

    def release_ports(self) -> None:
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def fetch(self, order: commands.Fetch) -> None:
        """Copy the checkpoint of an earlier attempt, or the file of parameters, to this node."""
        target = self.directory.resume / (CHECKPOINT if order.what == "checkpoint" else PARAMETERS)
        arguments = (order.source, str(target), order.bytes, order.blake3, order.bytes_per_s)
        self._call(order.what, fetch_file, *arguments, timeout_s=order.limit_s, then=partial(self._fetched, order))

    def _fetched(self, order: commands.Fetch, call: Call) -> None:
        problem = None
        try:
            call.result()
        except DigestMismatch as error:
            problem = str(error)
        except SlipwayError as error:
            self.fail("fetch", type(error).__name__, str(error))
            return
        self.resumed = problem is None and order.what == "checkpoint"
        self.report(reports.Fetched(problem=problem))

    def forget(self) -> None:
        """Remove the checkpoint, which is not whole on another node."""
        self.resumed = False
        (self.directory.resume / CHECKPOINT).unlink(missing_ok=True)

    def release(self) -> None:
        """Release our leases in the cache, also those of a stager that was killed."""
        if self._holder is not None:
            from data_prep.cache.lock import release_all

            release_all(Path(self.plan.cache), self._holder)
            self._holder = self.staged = None

    def stop(self) -> None:
        self.release_ports()
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
        self._calls.append(Call(self.loop, what, function, *arguments, timeout_s=timeout_s, renewed=renewed).then(then))


def stage_argv(
    python: str, plan: commands.Plan, index: int, source: str, holder: CacheUser | None = None, *, single: bool = False
) -> tuple[str, ...]:
    """Return the command of node `index` that copies the dataset `source`, or a `single` file, into its cache. All nodes of the plan share
    its rate."""
    nodes = plan.allocation.nodes
    options = {
        "--holder": None if holder is None else json.dumps(holder, sort_keys=True),
        "--max-bytes": None if single else plan.cache_max_bytes,  # all else is given back when all nodes have it
        "--bytes-per-s": None if plan.bytes_per_s is None else f"{plan.bytes_per_s:g}",
        "--check-s": None if plan.cache_check_s is None else f"{plan.cache_check_s:g}",
        "--peer-group": f"{index}/{len(nodes)}" if len(nodes) > 1 else None,
        "--address": nodes[index].address if len(nodes) > 1 else None,
    }
    given = (word for name, value in options.items() if value is not None for word in (name, str(value)))
    argv = (python, "-P", "-m", "data_prep.staging", "--source", source, "--cache", plan.cache)
    return (*argv, *given, *(("--group",) if plan.group else ()), *(("--single",) if single else ()))


# Setup before the ranks: old containers are removed, the engine is asked for its abilities, other users of the GPUs are detected.


class PreparedNode(reports.Value, frozen=True, kw_only=True):
    """What was found when a node was prepared for its ranks."""

    removed: tuple[str, ...]
    """What was done about containers whose job is gone, in lines."""
    cdi: bool
    """True if docker takes GPUs by CDI."""
    other_use: tuple[OtherUse, ...]
    """Who else uses the GPUs."""
    faults: tuple[GpuFault, ...]


def prepare_node(
    engine: str, directory: tuple[str, str], framework: Framework, granted: Sequence[str], gpus: Sequence[str]
) -> PreparedNode:
    """Copy the program and what a container needs, then list who else uses the GPUs. Runs in a child. `directory`: cache and tag;
    `granted`: the node's GPUs; `gpus`: those to check for others. Raises ContainerError if the engine does not answer, TrainingFailed if
    the program lacks something here, and what `bring_program` raises."""
    removed: list[str] = []
    cdi = False
    here = WorkDirectory(Path(directory[0]), directory[1])
    if framework.own or in_container(engine):
        here.bring_program(framework.folder, framework.digest, own=framework.own)
    if program_check.is_looked_at(framework):
        problem = program_check.why_not_startable(framework, here.program, here.out, os.environ, contained=in_container(engine))
        if problem is not None:
            raise TrainingFailed(problem)
    if in_container(engine):
        here.bring_library(framework.library)
        removed = remove_leftovers(engine, directory[1])
        from containers.engines.docker import has_cdi

        cdi = has_cdi(engine, granted)
    from cluster.gpus.listing import query_gpu_faults, query_other_use

    foreign, faults = query_other_use(gpus), query_gpu_faults(granted)
    return PreparedNode(removed=tuple(removed), cdi=cdi, other_use=foreign, faults=faults)


def remove_leftovers(engine: str, tag: str) -> list[str]:
    """Take away containers whose job is gone; what was done about them, in lines. Raises ContainerError."""
    from containers.reaping import reap_here

    if engine not in STORES:
        return []
    return [
        f"{'removed' if decision.remove else 'left'} the container {decision.container.name}: {decision.reason}"
        for decision in reap_here(engine, partial(is_older, tag))
        if decision.remove or decision.stuck
    ]


def for_this_node(engine: str, spec: ContainerSpec, granted: int | None, cdi: bool = False) -> ContainerSpec:
    """Add the user, limits, devices and network namespace of this node. `granted`: memory, as the scheduler says."""
    if not in_container(engine):
        return spec
    from containers.node_facts import with_facts

    env = (*spec.env, *([("SLIPWAY_NODE_NETWORK", str(Path("/proc/self/ns/net").readlink()))] if spec.network == "none" else []))
    return dataclasses.replace(with_facts(spec, granted), env=env, cdi=cdi)


# Processes that earlier attempts of the run have left on this node: schedulers start a job again while its old processes live.


_TAG: Final = re.compile(r"(?P<run>.+)-a(?P<attempt>\d+)-(?P<where>[0-9a-f]{16})[0-9a-f]{8}")


def is_older(tag: str, other: str) -> bool:
    """Return True if `other` is the tag of an earlier attempt of the run that `tag` is of."""
    ours, theirs = _TAG.fullmatch(tag), _TAG.fullmatch(other)
    if ours is None or theirs is None or (ours["run"], ours["where"]) != (theirs["run"], theirs["where"]):
        return False
    return int(theirs["attempt"]) < int(ours["attempt"])


def end_older_attempts(tag: str) -> None:
    """Kill what is left here of attempts before that of `tag`, which holds the run's lease, and wait for the end of it."""
    left = [pid for pid in processes.tagged(TAG, lambda other: is_older(tag, other)) if processes.of_this_node(pid)]
    if not left:
        return
    processes.send(left, signal.SIGKILL)
    gone = processes.wait_for_ends(left, limits.LEFTOVERS_END_S)
    logger.warning("killed %d processes of an earlier attempt of this run%s", len(left), "" if gone else "; some have not ended yet")
