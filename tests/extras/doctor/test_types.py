"""Findings: their form for programs, and how those of many nodes are put together."""

from __future__ import annotations

import pytest

from extras.doctor.types import Finding, abridged, by_subject, merged, worst


def test_findings_travel_as_json_and_are_put_together() -> None:
    one, two = Finding("a", "ok", "same", "", ("n1",)), Finding("a", "ok", "same", "", ("n2",))
    bad = Finding("b", "error", "bad", "mend it")
    assert Finding.from_json(bad.to_json()) == bad
    assert merged([one, bad, two]) == (Finding("a", "ok", "same", "", ("n1", "n2")), bad)
    assert [subject for subject, _ in by_subject([bad, one])] == ["a", "b"]
    assert worst([]) == "ok"
    with pytest.raises(ValueError, match="level must be"):
        Finding("a", "fatal", "no such level")  # type: ignore[arg-type]


def test_many_nodes_that_are_alike_take_one_line() -> None:
    many = [Finding("a", "ok", f"n{number} has 10.0.0.{number}", "", (f"n{number}",)) for number in range(1, 9)]
    (line,) = abridged(many)
    assert line.nodes == ("n1",)
    assert "7 other nodes are alike" in line.text
    slow = Finding("a", "note", "n9 has 10.0.0.9", "", ("n9",))
    assert len(abridged([*many[:2], slow])) == 3
