"""Whether the ranks of a run ended with the same parameters, by the checksums that they tell. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypedDict

from workflow.run.record.events import RankEvents
from workflow.run.record.kinds import FROM_ONE, RANKS, TEXT, NotBelieved, shown, taker

MOST_NAMED: Final = 8


class Replicas(TypedDict):
    """The checksum that most ranks told, of a tie that of the lowest rank; how many told one; and those that told another."""

    checksum: str
    ranks: int
    apart: list[int]


def replicas_of(events: Mapping[int, RankEvents]) -> Replicas | None:
    """None where no rank told a checksum."""
    told = {rank: found for rank, entry in sorted(events.items()) if (found := (entry.stop or {}).get("checksum")) is not None}
    if not told:
        return None
    ((checksum, _),) = Counter(told.values()).most_common(1)  # of a tie the first one
    return Replicas(checksum=checksum, ranks=len(told), apart=[rank for rank, found in told.items() if found != checksum])


def replica_warnings(found: Replicas | None) -> list[str]:
    """One sentence where ranks are apart."""
    if found is None or not found["apart"]:
        return []
    alike = found["ranks"] - len(found["apart"])
    others = f"the {alike} others" if alike > 1 else "the other one" if found["ranks"] == 2 else "one other"
    return [f"{in_words(found['apart'])} ended with other parameters than {others}: the replicas of the network have come apart"]


def in_words(ranks: list[int]) -> str:
    """`rank 1`, `ranks 1, 3`; the first ones of many."""
    named = ", ".join(str(rank) for rank in ranks[:MOST_NAMED])
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{' ...' if len(ranks) > MOST_NAMED else ''}"


def told_replicas(record: Mapping[str, Any]) -> Replicas | None:
    """Those of a record read whole; None of one that tells none. Raises NotBelieved."""
    found = (record.get("training") or {}).get("replicas")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise NotBelieved(f"training.replicas: found {shown(found)}, expected an object")
    kinds = {"checksum": TEXT, "ranks": FROM_ONE, "apart": RANKS}
    taken = {key: taker(f"training.replicas.{key}", kind, required=True)(found.get(key)) for key, kind in kinds.items()}
    return Replicas(checksum=taken["checksum"], ranks=taken["ranks"], apart=taken["apart"])
