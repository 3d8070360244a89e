"""Whether the ranks of a run ended with the same parameters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workflow.run.record.test_record import rank_events
from workflow.run.record.events import RankEvents
from workflow.run.record.kinds import NotBelieved
from workflow.run.record.replicas import replica_warnings, replicas_of, told_replicas


def ranks(*checksums: str | None) -> dict[int, RankEvents]:
    """One rank for each checksum; None: it tells none."""
    told = ({} if checksum is None else {"checksum": checksum} for checksum in checksums)
    return {rank: RankEvents(start={}, steps=rank_events([0.1]).steps, stop={"norm": 1.5, **stop}) for rank, stop in enumerate(told)}


@pytest.mark.parametrize(
    ("checksums", "found", "words"),
    [
        (("a", "a", "a"), ("a", 3, []), None),
        (("a",), ("a", 1, []), None),
        (("a", None, "a"), ("a", 2, []), None),
        (("a", "b"), ("a", 2, [1]), "rank 1 ended with other parameters than the other one: "),
        (("b", "a", "a"), ("a", 3, [0]), "rank 0 ended with other parameters than the 2 others: "),
        (("a", "b", "c"), ("a", 3, [1, 2]), "ranks 1, 2 ended with other parameters than one other: "),
        (("a", *"bcdefghijk"), ("a", 11, list(range(1, 11))), "ranks 1, 2, 3, 4, 5, 6, 7, 8 ... ended with"),
    ],
)
def test_ranks_with_another_checksum_than_most_are_apart(checksums: tuple[str, ...], found: tuple[str, int, list[int]], words: str) -> None:
    replicas = replicas_of(ranks(*checksums))
    assert replicas == dict(zip(("checksum", "ranks", "apart"), found, strict=True))
    said = replica_warnings(replicas)
    assert len(said) == (words is not None)
    assert all(sentence.startswith(words) and sentence.endswith("have come apart") for sentence in said)


def test_where_no_rank_tells_one_nothing_is_known() -> None:
    assert replicas_of(ranks(None, None)) is None
    assert replicas_of({0: RankEvents(start={}, steps={}, stop=None)}) is None
    assert replica_warnings(None) == []


def test_what_a_record_tells_is_looked_at() -> None:
    told = {"checksum": "a", "ranks": 2, "apart": [1]}
    assert told_replicas({"training": {"replicas": told}}) == told
    assert told_replicas({"training": {}}) is None
    assert told_replicas({"training": None}) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a"], "training.replicas: found a list, expected an object"),
        ({"checksum": 1, "ranks": 2, "apart": []}, "training.replicas.checksum: found 1, expected"),
        ({"checksum": "a", "ranks": 0, "apart": []}, "training.replicas.ranks: found 0, expected"),
        ({"checksum": "a", "ranks": 2, "apart": [-1]}, "training.replicas.apart: found .*, expected a list of ranks"),
        ({"checksum": "a", "ranks": 2}, "training.replicas.apart is missing"),
    ],
)
def test_what_is_no_such_thing_is_not_believed(value: Any, message: str) -> None:
    with pytest.raises(NotBelieved, match=message):
        told_replicas({"training": {"replicas": value}})
