"""Whether the ranks of a run ended with the same parameters."""

from __future__ import annotations

from typing import Any

import pytest

from base.errors import RecordError
from tests.workflow.report.builder import make_cell, make_record
from tests.workflow.run.record.test_record import rank_events
from workflow.run.record.events import RankEvents
from workflow.run.record.model import Replicas, validate_record
from workflow.run.record.rate import NOT_COMPARED, replica_warnings, replicas_of
from workflow.run.record.run_record import measured


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
    assert replicas == Replicas(checksum=found[0], ranks=found[1], apart=tuple(found[2]))
    said = replica_warnings(replicas)
    assert len(said) == (words is not None)
    assert all(sentence.startswith(words) and sentence.endswith("have come apart") for sentence in said)


def test_where_no_rank_tells_one_nothing_is_known() -> None:
    assert replicas_of(ranks(None, None)) is None
    assert replicas_of({0: RankEvents(start={}, steps={}, stop=None)}) is None
    assert replica_warnings(None) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a"], "training.replicas: found a list, expected an object"),
        ({"checksum": 1, "ranks": 2, "apart": []}, "training.replicas.checksum: found 1, expected"),
        ({"checksum": "a", "ranks": 0, "apart": []}, "training.replicas.ranks: found 0, expected"),
        ({"checksum": "a", "ranks": 2, "apart": [-1]}, "training.replicas.apart\\[0\\]: found -1, expected a rank"),
        ({"checksum": "a", "ranks": 2}, "training.replicas.apart is missing"),
    ],
)
def test_what_a_record_tells_is_looked_at(value: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        validate_record(make_record(make_cell(), **{"training.replicas": value}))


@pytest.mark.parametrize(
    ("checksums", "mode", "warned"),
    [
        ((None, None), "train", True),
        (("a", None), "train", True),
        (("a", "a"), "train", False),
        ((None,), "train", False),
        ((None, None), "infer", False),
    ],
)
def test_ranks_that_nobody_compared_are_a_warning(checksums: tuple[str | None, ...], mode: str, warned: bool) -> None:
    found = measured(ranks(*checksums), len(checksums), 2 * len(checksums), mode)
    assert (NOT_COMPARED in found["warnings"]) == warned


def test_ranks_of_a_run_that_was_cut_off_are_not_compared() -> None:
    events = ranks(None, None)
    events[1].stop = None
    assert NOT_COMPARED not in measured(events, 2, 4)["warnings"]


@pytest.mark.parametrize(
    ("began_s", "ended_s", "hosts", "late"),
    [
        ([0, 0, 0], [100.0, 100.9, 99.0], "aaa", []),
        ([0, 0, 0], [100.0, 201.0, 100.2], "aaa", [1]),
        ([0, 0, 0], [100.0, 102.5, 102.9], "abc", [1, 2]),
        ([0, 0, 0], [200.0, 100.0, 100.0], "abc", []),
        ([9, 0, 0], [100.0, 100.0, 100.0], "aaa", []),
        ([9, 0, 7000], [100.0, 100.0, 7100.1], "aab", []),
        ([9, 0, 7000], [100.0, 100.0, 7150.1], "aab", [2]),
        ([0, 0, 0], [100.0, None, 100.0], "abc", []),
    ],
    ids=["together", "half as fast", "a little slower", "rank 0 saves", "rank 0 starts late", "another clock", "late there", "not told"],
)
def test_a_rank_that_nobody_reads_and_that_ended_later_than_rank_0_is_late(
    began_s: list[float], ended_s: list[float | None], hosts: str, late: list[int]
) -> None:
    """The window of rank 0 is 50 s: 2 % of it and 1 s are 2 s."""
    events = {
        rank: RankEvents(
            start={"steps_source": "log" if rank == 0 else "none", "hostname": hosts[rank], "monotonic_ns": int(begin * 1e9)},
            stop={"monotonic_ns": None if end is None else int(end * 1e9)},
        )
        for rank, (begin, end) in enumerate(zip(began_s, ended_s, strict=True))
    }
    events[0].steps = {number: step._replace(samples=6) for number, step in rank_events([0.5] * 100).steps.items()}
    found = measured(events, 3, 6)
    assert found["training"]["late_ranks"] == late
    said = [one for one in found["warnings"] if one != NOT_COMPARED]
    assert len(said) == bool(late)
    assert all(one.endswith("the ranks did not wait for each other, and the rate is that of rank 0 alone") for one in said)
