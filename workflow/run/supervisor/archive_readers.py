"""Which nodes read the image's archive from storage now. A dataset is read once and passed on; an archive is read by every node that does
not have the image, so that no more than some of them do it at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from workflow.run.link.orders import ReadImage
from workflow.run.link.said import DatasetIsHere, Failed, ImageRead, ImageWanted, Staged
from workflow.run.supervisor.nodes import NodeHandle

MOST_READERS: Final = 16
"""Where the site's `storage_limit` names no `readers`."""
OVER: Final = (ImageRead, Staged, Failed)


class ArchiveReaders:
    """`give()` whenever something was said, and now and then: nodes go away without a word."""

    def __init__(
        self, nodes: Sequence[NodeHandle], send: Callable[[NodeHandle, ReadImage], None], readers: int | None, bytes_per_s: float | None
    ) -> None:
        self._nodes, self._send = nodes, send
        self._most = max(1, readers or MOST_READERS)
        self._bytes_per_s = bytes_per_s
        self._given: set[int] = set()

    def give(self) -> None:
        """To those that wait, in the order of the nodes, as many as may read at once; all together no faster than the site allows."""
        there = [node for node in self._nodes if not node.lost]
        if self._bytes_per_s and not all(_has_dataset(node) for node in there):
            return  # the dataset's readers have the whole rate
        reading = sum(node.index in self._given and not _is_over(node) for node in there)
        waiting = [node for node in there if node.index not in self._given and node.has_said(ImageWanted)]
        for node in waiting[: max(0, self._most - reading)]:
            self._given.add(node.index)
            self._send(node, ReadImage(bytes_per_s=self._share()))

    def waits(self, node: NodeHandle) -> bool:
        """Whether it could read, and may not yet: that it says so is no progress."""
        return node.has_said(ImageWanted) and node.index not in self._given and not _is_over(node)

    def _share(self) -> float | None:
        return None if self._bytes_per_s is None else self._bytes_per_s / min(self._most, len(self._nodes))


def _is_over(node: NodeHandle) -> bool:
    return node.has_said(*OVER)


def _has_dataset(node: NodeHandle) -> bool:
    return node.has_said(DatasetIsHere) or _is_over(node)
