"""Stage dataset and image on all nodes of a run, as the supervisor sees it: node programs come up, get commands, and pass files on."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, assert_never, get_args

from msgspec.structs import replace

from base.errors import DigestMismatch, StagingError, StorageError
from base.humanize import format_duration, format_size, some
from cluster.types import Node
from containers.spec import CHECKPOINT
from workflow.run.link import commands, reports
from workflow.run.link.protocol import NODE_CONNECT_S
from workflow.run.record.outcome import Ending
from workflow.run.record.resume import EarlierAttempt
from workflow.run.storage.results import PreparedRun
from workflow.run.supervisor import run_scope, step_limits
from workflow.run.supervisor.nodes import NodeHandle, Nodes

logger = logging.getLogger(__name__)

# A transfer: one set of files on its way to all nodes. Nodes that stage it are told of each other, so that storage is read once.


class Transfer:
    """A copy of the files `what` to all nodes. At most `readers` nodes read storage, all if None. `now` is time.monotonic()."""

    def __init__(self, what: reports.What, nodes: Nodes, readers: int | None) -> None:
        self.what, self._nodes, self._readers = what, nodes, readers
        self._begun: float | None = None
        self._listening: dict[int, reports.Listening | None] = {}
        """The address of each node's stager, None while it waits for that of another process."""
        self._introduced: list[reports.Listening | None] | None = None
        """The same, once the nodes were told of each other; None before."""
        self._appointed: tuple[int, ...] = ()
        self._progress: dict[int, reports.Progress] = {}

    def begin(self, now: float) -> None:
        """Note the start: nodes wait for each other from now on."""
        if self._begun is None:
            self._begun = now

    def answers(self, node: NodeHandle, where: reports.Listening | None, now: float) -> None:
        """Note where a node's stager listens, None if it waits. One that comes late is told of the others, and goes to them."""
        self.begin(now)
        self._listening[node.index] = where
        if self._introduced is not None and self._introduced[node.index] is None and where is not None:
            self._introduced[node.index] = where
            self._send_peers(node, late=True)

    def introduce(self, now: float, has_it: Callable[[NodeHandle], bool]) -> None:
        """Send the listening nodes the addresses of the others and the list of readers, once every node has answered, `has_it` or is late.
        If no node listens yet, wait: the first one becomes the reader."""
        if self._introduced is not None or self._begun is None or not any(self._listening.values()):
            return
        silent = [node for node in self._nodes.all if not node.lost and node.index not in self._listening and not has_it(node)]
        if silent and now - self._begun <= step_limits.PEERS_MEET_S:
            return
        self._introduced = [None if node.lost else self._listening.get(node.index) for node in self._nodes.all]
        self._appointed = pick_readers([None if said is None else said.have == "all" for said in self._introduced], self._readers)
        for node, said in zip(self._nodes.all, self._introduced, strict=True):
            if said is not None:
                self._send_peers(node, late=False)

    def _send_peers(self, node: NodeHandle, late: bool) -> None:
        assert self._introduced is not None
        peers = tuple(None if said is None else (said.address, said.port, said.have) for said in self._introduced)
        others = commands.Others(peers=peers, readers=self._appointed, most_readers=self._readers, late=late)
        self._nodes.send(node, commands.MeetPeers(what=self.what, others=others))

    def progress(self, node: NodeHandle, message: reports.Progress, now: float) -> bool:
        """Note the bytes that are done, which a node also reports while nothing moves. Return True if some moved."""
        self.begin(now)
        before = self._progress.get(node.index)
        self._progress[node.index] = message
        return before is None or message.done != before.done

    @property
    def is_under_way(self) -> bool:
        """Return True if a node that is there lacks bytes."""
        told = ((self._nodes.all[index], message) for index, message in self._progress.items())
        return any(not node.lost and message.done < message.total for node, message in told)

    def described(self, now: float) -> str:
        assert self._begun is not None
        done, total = (sum(getattr(message, key) for message in self._progress.values()) for key in ("done", "total"))
        rate = done / (now - self._begun) if now > self._begun else 0.0
        left = f", {format_duration((total - done) / rate)} left" if rate else ""
        return f"{format_size(done)} of {format_size(total)}, {format_size(rate)}/s{left}"


def pick_readers(complete: Sequence[bool | None], most: int | None) -> tuple[int, ...]:
    """Choose the nodes that read from storage. `complete[i]`: whether node i has all chunks, None if it is not there. Those that have all
    read nothing; of the others at most `most`, the first."""
    lacking = tuple(index for index, whole in enumerate(complete) if whole is False)
    return lacking if most is None else lacking[: max(1, most)]


LARGEST_CHUNK: Final = 64 << 20
"""data_prep.staging.copy.MAX_CHUNK_BYTES: a chunk shows as progress when all of it has come."""
MIN_RATE: Final = 5 << 20
"""Bytes per second that the slowest storage gives."""


class Staging:
    """The staging of all nodes of a run; it ends the run where a node does not come up or nothing moves."""

    def __init__(self, scope: run_scope.RunScope, nodes: Nodes, clock: Callable[[], float] = time.monotonic) -> None:
        self._scope, self._nodes, self._clock = scope, nodes, clock
        self._heard = self._shown = self._clock()
        self._transfers: dict[reports.What, Transfer] = {}
        self._is_limited = False
        self._bytes_per_s: float | None = None
        """The most that each node may read from storage while all of them read; None: no limit."""
        self._loading: set[int] = set()
        """The nodes that were told to load the image."""

    def wait_for_nodes(self) -> None:
        while not self._scope.wait(lambda: self._everybody(reports.Ready), max(0.0, self._nodes.launched + NODE_CONNECT_S - self._clock())):
            if self._clock() < self._nodes.launched + NODE_CONNECT_S:
                continue
            late = tuple(node.node.name for node in self._nodes.all if not node.has_reported(reports.Ready))
            missing = ", ".join(late)
            self._scope.fail(
                Ending(status="node_lost", reason=f"no node program came up on {missing} within {NODE_CONNECT_S:.0f} s", nodes=late)
            )

    def look(self, plan: commands.Plan, cache_of: Callable[[Node], str]) -> None:
        """Send every node the plan, with the node's own cache by `cache_of`. For a run, wait until each has delivered what waits there and
        has looked for what it needs, or has failed; where a dataset alone is staged (`plan.ranks` is None), do not wait."""
        for node in self._nodes.all:
            self._nodes.send(node, replace(plan, cache=cache_of(node.node)))
        if plan.ranks is not None:
            self._scope.wait(lambda: self._everybody(reports.LookedAt, reports.Failed))

    def run(self, plan: commands.Plan, readers: int | None) -> None:
        """Wait until every node, which has the plan, has dataset and image, and the ports of its processes. At most `readers` nodes read
        storage; None: all may."""
        self._is_limited = plan.bytes_per_s is not None or readers is not None
        self._bytes_per_s = plan.bytes_per_s and plan.bytes_per_s / len(self._nodes.all)
        self._transfers = {what: Transfer(what, self._nodes, readers) for what in get_args(reports.What)}
        self._nodes.send_all(commands.Stage())
        self._heard = self._clock()
        self._transfers["dataset"].begin(self._heard)
        limit_s = stall_s(plan.bytes_per_s, len(self._nodes.all), readers)
        while not self._scope.wait(self._is_over, 1.0):
            if self._clock() - self._heard > limit_s:
                self._scope.fail(Ending(status="storage", reason=f"staging made no progress for {limit_s:.0f} s", error=StagingError))
        show_origin(
            "image", [said.image for node in self._nodes.all if (said := node.last(reports.Staged)) is not None and said.image is not None]
        )

    # -- the start of training: the newest whole checkpoint of the run's earlier attempts, else the parameters that the cell names

    def bring_checkpoint(self, run: PreparedRun, warn: Callable[[str], None]) -> EarlierAttempt | None:
        """Return the earlier attempt whose checkpoint every node now has, None for a start from scratch. Warn of damaged ones."""
        for offer in run.resumable:
            source = str(Path(run.run_dir, "attempts", str(offer.attempt), CHECKPOINT))
            problem = self._bring("checkpoint", source, offer.bytes, offer.blake3)
            if problem is None:
                before = format_duration(offer.used_s)
                logger.info("going on from attempt %d at step %d; %s were trained before", offer.attempt, offer.step, before)
                return offer
            warn(f"attempt {offer.attempt} cannot be resumed: {problem}")
            self._nodes.send_all(commands.Forget())
        return None

    def bring_parameters(self, given: Mapping[str, Any]) -> None:
        """Bring the file of parameters `given` to all nodes. Ends the run where it is not the one that the study was read with."""
        problem = self._bring("parameters", given["path"], given["bytes"], given["blake3"])
        if problem is not None:
            reason = f"parameters: {problem}: a file that is another one now makes other cells; the same command reads the study again"
            self._scope.fail(Ending(status="storage", reason=reason, error=DigestMismatch))

    def _bring(self, what: Literal["checkpoint", "parameters"], source: str, num_bytes: int, blake3: str) -> str | None:
        """Return what is wrong with the file, once all nodes have answered. Ends the run if storage does not give it."""
        rate = self._bytes_per_s
        limit_s = max(step_limits.CHECKPOINT_MIN_S, num_bytes / MIN_RATE) + (num_bytes / rate if rate else 0.0)
        order = commands.Fetch(what=what, source=source, bytes=num_bytes, blake3=blake3, limit_s=limit_s, bytes_per_s=rate)
        nodes = self._nodes.all
        self._nodes.forget(reports.Fetched)
        self._nodes.send_all(order)  # a node that goes while its job is ended is lost, and is no end of ours
        is_here = lambda: all(node.has_reported(reports.Fetched) for node in nodes)  # noqa: E731
        if not self._scope.wait(is_here, limit_s + step_limits.CHECKPOINT_ANSWER_S):
            silent = ", ".join(node.node.name for node in nodes if not node.has_reported(reports.Fetched))
            reason = f"the {what} {source} did not reach {silent} within {limit_s:.0f} s"
            self._scope.fail(Ending(status="storage", reason=reason, error=StorageError))
        return next((problem for node in nodes if (problem := node.answer(reports.Fetched).problem) is not None), None)

    def end(self) -> None:
        """Wait until nothing of it goes on on any node: what is measured comes next."""
        self._nodes.send_all(commands.AllStaged())
        self._scope.wait(lambda: self._everybody(reports.StagingEnded, reports.Failed))

    def _is_over(self) -> bool:
        """Return True if every node has all; those that stage the same are introduced before. If the site limits how storage is read, the
        image is loaded when no node lacks the dataset."""
        now = self._clock()
        self._transfers["dataset"].introduce(now, _has_dataset)
        self._transfers["image"].introduce(now, _has_image)
        if not self._is_limited or all(node.lost or _has_dataset(node) for node in self._nodes.all):
            for node in self._nodes.all:
                if node.has_reported(reports.DatasetIsHere) and node.index not in self._loading:
                    self._loading.add(node.index)
                    self._nodes.send(node, commands.LoadImage())
        self._note_loads(now)
        return self._everybody(reports.Staged, reports.Failed)

    def heard(self, node: NodeHandle, message: reports.StagingReport) -> None:
        if not self._transfers:
            return  # nothing was ordered yet
        now = self._clock()
        match message:
            case reports.Listening():
                self._heard = now
                self._transfers[message.what].answers(node, message, now)
            case reports.Waiting():
                self._transfers[message.what].answers(node, None, now)
            case reports.Progress():
                transfer = self._transfers[message.what]
                if transfer.progress(node, message, now):
                    self._heard = now
                if self._is_time_to_show(now):
                    logger.info("%s: %s", "stage" if message.what == "dataset" else message.what, transfer.described(now))
            case reports.DatasetIsHere():
                self._heard = now
            case _:
                assert_never(message)

    def _everybody(self, *kinds: type[reports.Message]) -> bool:
        return all(node.lost or node.has_reported(*kinds) for node in self._nodes.all)

    def _note_loads(self, now: float) -> None:
        """Take a load for progress: each node limits its own. It is none while a node lacks bytes, for whose load it may wait."""
        names = [node.node.name for node in self._nodes.all if node.index in self._loading and not (node.lost or _has_image(node))]
        if not names or self._transfers["image"].is_under_way:
            return
        self._heard = now
        if self._is_time_to_show(now):
            logger.info("image: %s load it into their engine", some(names, 8))

    def _is_time_to_show(self, now: float) -> bool:
        if now - self._shown < step_limits.SHOW_EVERY_S:
            return False
        self._shown = now
        return True


def show_origin(what: str, brought: Sequence[reports.LoadedImage]) -> None:
    """Log what the nodes have read from storage, and what they have sent each other."""
    read, sent = sum(one.storage_bytes for one in brought), sum(one.peer_bytes for one in brought)
    if read or sent:
        logger.info("%s: %s were read from storage, %s sent by other nodes", what, format_size(read), format_size(sent))


def _has_dataset(node: NodeHandle) -> bool:
    return node.has_reported(reports.DatasetIsHere, reports.Staged, reports.Failed)


def _has_image(node: NodeHandle) -> bool:
    return node.has_reported(reports.Staged, reports.Failed)


def stall_s(bytes_per_s: float | None, nodes: int, most_readers: int | None) -> float:
    """Return how long staging may go on without progress. The nodes that read storage, all for None, share `bytes_per_s`."""
    readers = nodes if most_readers is None else max(1, min(nodes, most_readers))
    return step_limits.STAGING_STALL_S + (LARGEST_CHUNK * readers / bytes_per_s if bytes_per_s else 0.0)
