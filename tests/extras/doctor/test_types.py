"""How the findings of many nodes are put together."""

from extras.doctor.types import Finding, by_subject, merged, worst


def test_findings_are_put_together() -> None:
    one, two = Finding("a", "ok", "same", "", ("n1",)), Finding("a", "ok", "same", "", ("n2",))
    bad = Finding("b", "error", "bad", "mend it")
    assert merged([one, bad, two]) == (Finding("a", "ok", "same", "", ("n1", "n2")), bad)
    assert [subject for subject, _ in by_subject([bad, one])] == ["a", "b"]
    assert worst([]) == "ok"
