"""What must lie on storage of a run that ended `ok`."""

from __future__ import annotations

from workflow.run.events import RankEvents
from workflow.run.ok_check import contradiction
from workflow.run.record import measured


def test_every_rank_has_begun_and_ended_in_what_was_pushed() -> None:
    whole = RankEvents(start={"parameters": 7}, stop={"norm": 1.5})
    assert contradiction({0: whole, 1: whole}, 2, ("lenet", 7)) is None
    assert contradiction({0: whole, 1: whole}, 2, None) is None
    found = contradiction({0: whole}, 2, None)
    assert found is not None
    assert found.startswith("rank 1 ended well, and there is no events-1.jsonl among what could be pushed")
    torn = {0: whole, 1: RankEvents(start={"parameters": 7})}
    assert "events-1.jsonl was pushed without run_stop:" in str(contradiction(torn, 2, None))
    assert "events-0.jsonl was pushed without run_start and run_stop:" in str(measured({0: RankEvents()}, 1, 2)["contradiction"])
    assert "another network" in str(contradiction({0: whole}, 1, ("lenet", 8)))
