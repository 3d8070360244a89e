"""Whether the ranks of a run trained one network together: by the checksums of their parameters, and by when they ended. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from workflow.run.record.events import RankEvents
from workflow.run.record.model import Replicas

MOST_NAMED: Final = 8
NOT_COMPARED: Final = (
    "nobody has compared the parameters of the ranks at the end: whether they trained one network together is not known; "
    "slipway_events.start(model=...) makes the checksum for that"
)
LATE_RATIO: Final = 0.02
LATE_S: Final = 1.0
"""A rank that ended later than rank 0 by more than this, in parts of the window and beside that, has not done its steps together with it:
ranks that wait for each other end within what starting and leaving a process takes."""


def replicas_of(events: Mapping[int, RankEvents]) -> Replicas | None:
    """None where no rank told a checksum."""
    told = {rank: found for rank, entry in sorted(events.items()) if (found := (entry.stop or {}).get("checksum")) is not None}
    if not told:
        return None
    ((checksum, _),) = Counter(told.values()).most_common(1)  # of a tie the first one
    return Replicas(checksum=checksum, ranks=len(told), apart=tuple(rank for rank, found in told.items() if found != checksum))


def not_compared(events: Mapping[int, RankEvents], found: Replicas | None, num_processes: int) -> list[str]:
    """Return a sentence where several ranks ended, and not all tell a checksum."""
    ended = num_processes > 1 and sum(entry.stop is not None for entry in events.values()) == num_processes
    return [NOT_COMPARED] if ended and (found is None or found.ranks < num_processes) else []


def late_ranks(events: Mapping[int, RankEvents], read: Mapping[int, RankEvents], window_s: float | None) -> dict[int, float]:
    """Return the ranks whose output nobody read and that ended later than rank 0, and by how many seconds. `window_s`: of rank 0.

    Ranks of one host are compared by its clock, those of several by how long ago the first rank of each host was started.
    """
    ended = _ended_s(events)
    if window_s is None or 0 not in ended:
        return {}
    limit_s = ended[0] + LATE_RATIO * window_s + LATE_S
    return {rank: seconds - ended[0] for rank, seconds in ended.items() if rank not in read and seconds > limit_s}


def _ended_s(events: Mapping[int, RankEvents]) -> dict[int, float]:
    """Return when each rank ended, in seconds after the start of the first one on its host."""
    moments: dict[int, tuple[str, int, int]] = {}
    for rank, entry in sorted(events.items()):
        start, stop = entry.start or {}, entry.stop or {}
        began_ns, ended_ns = start.get("monotonic_ns"), stop.get("monotonic_ns")
        if began_ns is not None and ended_ns is not None:
            moments[rank] = (start.get("hostname") or "", began_ns, ended_ns)
    first_ns: dict[str, int] = {}
    for host, began_ns, _ in moments.values():
        first_ns[host] = min(began_ns, first_ns.get(host, began_ns))
    return {rank: (ended_ns - first_ns[host]) / 1e9 for rank, (host, _, ended_ns) in moments.items()}


def late_warnings(late: Mapping[int, float]) -> list[str]:
    """Return a sentence where ranks ended late."""
    if not late:
        return []
    who = f"{in_words(list(late))} ended {max(late.values()):.3g} s later than rank 0, whose output alone was read for steps"
    return [f"{who}: the ranks did not wait for each other, and the rate is that of rank 0 alone"]


def replica_warnings(found: Replicas | None) -> list[str]:
    """One sentence where ranks are apart."""
    if found is None or not found.apart:
        return []
    alike = found.ranks - len(found.apart)
    others = f"the {alike} others" if alike > 1 else "the other one" if found.ranks == 2 else "one other"
    return [f"{in_words(found.apart)} ended with other parameters than {others}: the replicas of the network have come apart"]


def in_words(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 1, 3`; the first ones of many."""
    named = ", ".join(str(rank) for rank in ranks[:MOST_NAMED])
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{' ...' if len(ranks) > MOST_NAMED else ''}"
