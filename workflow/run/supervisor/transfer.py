"""One set of files on its way to all nodes, as the supervisor sees it: nodes that stage it are told of each other, so that storage is read
once, and how far they are is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from base.units import format_duration, format_size
from workflow.run.link import orders
from workflow.run.link.fields import What
from workflow.run.link.said import Listening, Progress
from workflow.run.supervisor.limits import PEERS_MEET_S
from workflow.run.supervisor.nodes import NodeHandle, Nodes


class Transfer:
    """Of `what`. At most `readers` nodes read storage; None: all may. `now` is time.monotonic()."""

    def __init__(self, what: What, nodes: Nodes, readers: int | None) -> None:
        self.what, self._nodes, self._readers = what, nodes, readers
        self._begun: float | None = None
        self._said: dict[int, Listening | None] = {}
        """Where each node's stager listens, None where it waits for somebody else's."""
        self._met: list[Listening | None] | None = None
        """The same, once the nodes were told of each other; None before."""
        self._appointed: tuple[int, ...] = ()
        self._progress: dict[int, Progress] = {}

    def begin(self, now: float) -> None:
        """From now on nodes wait for each other."""
        if self._begun is None:
            self._begun = now

    def answers(self, node: NodeHandle, where: Listening | None, now: float) -> None:
        """Where its stager listens, None: it waits. One that comes when the others were told already is told of them, and goes to them."""
        self.begin(now)
        self._said[node.index] = where
        if self._met is not None and self._met[node.index] is None and where is not None:
            self._met[node.index] = where
            self._tell_of_others(node, late=True)

    def introduce(self, now: float, has_it: Callable[[NodeHandle], bool]) -> None:
        """Tell those that listen of each other, and who reads from storage, once every node that is there has answered or `has_it`, or took
        too long for that. Without anybody there is nobody to appoint as a reader: the first that comes then is the one."""
        if self._met is not None or self._begun is None or not any(self._said.values()):
            return
        silent = [node for node in self._nodes.all if not node.lost and node.index not in self._said and not has_it(node)]
        if silent and now - self._begun <= PEERS_MEET_S:
            return
        self._met = [None if node.lost else self._said.get(node.index) for node in self._nodes.all]
        self._appointed = pick_readers([None if said is None else said.have == "all" for said in self._met], self._readers)
        for node, said in zip(self._nodes.all, self._met, strict=True):
            if said is not None:
                self._tell_of_others(node, late=False)

    def _tell_of_others(self, node: NodeHandle, late: bool) -> None:
        assert self._met is not None
        peers = tuple(None if said is None else (said.address, said.port, said.have) for said in self._met)
        others = orders.Others(peers=peers, readers=self._appointed, most_readers=self._readers, late=late)
        self._nodes.send(node, orders.MeetPeers(what=self.what, others=others))

    def progress(self, node: NodeHandle, message: Progress, now: float) -> bool:
        """How far it is, which it tells also while it does not get on; whether it got on."""
        self.begin(now)
        before = self._progress.get(node.index)
        self._progress[node.index] = message
        return before is None or message.done != before.done

    @property
    def is_under_way(self) -> bool:
        """Whether a node that is there lacks bytes."""
        told = ((self._nodes.all[index], message) for index, message in self._progress.items())
        return any(not node.lost and message.done < message.total for node, message in told)

    def described(self, now: float) -> str:
        """For people: bytes, rate and time left."""
        assert self._begun is not None
        done, total = (sum(getattr(message, key) for message in self._progress.values()) for key in ("done", "total"))
        rate = done / (now - self._begun) if now > self._begun else 0.0
        left = f", {format_duration((total - done) / rate)} left" if rate else ""
        return f"{format_size(done)} of {format_size(total)}, {format_size(rate)}/s{left}"


def pick_readers(complete: Sequence[bool | None], most: int | None) -> tuple[int, ...]:
    """Pure: the nodes that read from storage. `complete[i]`: whether node i has all chunks, None where it is not there. Those that have all
    read nothing; of the others at most `most`, the first."""
    lacking = tuple(index for index, whole in enumerate(complete) if whole is False)
    return lacking if most is None else lacking[: max(1, most)]
