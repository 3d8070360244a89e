"""Count rejected samples and keep the first names and reasons, so that a million of them do not fill the memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from base.errors import DatasetError
from base.units import and_more
from data_prep.sources.naming import printable

KEPT = 1000
_SHOWN = 5


class Rejections:
    """A collector of (name, reason). The entries that it keeps do not depend on their order of arrival."""

    def __init__(self) -> None:
        self.count = 0
        self._entries: list[tuple[str, str]] = []

    def add(self, name: str, reason: str) -> None:
        """Add an entry. Names may hold any bytes."""
        self.count += 1
        self._entries.append((printable(name), reason))
        if len(self._entries) > 4 * KEPT:
            self._entries = sorted(self._entries)[:KEPT]

    def merge(self, entries: Iterable[Mapping[str, str]], count: int) -> None:
        """Add the entries of another collector, as `to_json` returned them."""
        self._entries += [(entry["name"], entry["reason"]) for entry in entries]
        self.count += count

    def to_json(self) -> list[dict[str, str]]:
        """Return the first entries by name."""
        return [{"name": name, "reason": reason} for name, reason in sorted(self._entries)[:KEPT]]

    def refuse(self, what: str) -> DatasetError:
        """Make the error for a build that accepts no rejected samples."""
        lines = [f"{entry['name']}: {entry['reason']}" for entry in self.to_json()[:_SHOWN]]
        listed = "".join(f"\n  {line}" for line in filter(None, [*lines, and_more(self.count, _SHOWN)]))
        return DatasetError(f"{what}: {self.count} entries of the source cannot be used:{listed}")
