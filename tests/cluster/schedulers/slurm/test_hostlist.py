from __future__ import annotations

import pytest

from base.errors import SchedulerOutputError
from cluster.schedulers.slurm.answers import expand, expand_counts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03,07],x1", ["n01", "n02", "n03", "n07", "x1"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("rack[1-2]n[3,5]-ib,x1-ib", ["rack1n3-ib", "rack1n5-ib", "rack2n3-ib", "rack2n5-ib", "x1-ib"]),
        ("a[1]b,c", ["a1b", "c"]),
        ("b2,a1", ["b2", "a1"]),
    ],
)
def test_names_are_listed_in_order(text: str, expected: list[str]) -> None:
    assert expand(text) == tuple(expected)


@pytest.mark.parametrize("text", ["", "n[1-3", "n1-3]", "n[[1]]", "n[3-1]", "n[a-b]", "n1,,n2", "n[]", "n[0-99999999]", "n[1-999][1-999]"])
def test_what_is_no_list_is_an_error(text: str) -> None:
    with pytest.raises(SchedulerOutputError, match="not a node list"):
        expand(text)


def test_counts_are_repeated() -> None:
    assert expand_counts("2(x3),1") == (2, 2, 2, 1)
    assert expand_counts("72") == (72,)


@pytest.mark.parametrize("text", ["", "2(x3", "a", "2(3)", "1,,2", "1(x999999999)"])
def test_what_is_no_count_is_an_error(text: str) -> None:
    with pytest.raises(SchedulerOutputError, match="not a list of counts"):
        expand_counts(text)
