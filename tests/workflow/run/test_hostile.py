"""A hostile program without a container: its node program neither follows nor waits for what it has planted."""

import pytest

from tests.workflow.run.hostile import a_pipe_freezes_nobody, links_lead_nowhere
from tests.workflow.run.test_runs import ended
from tests.workflow.run.world import World

pytestmark = pytest.mark.slow


def test_links_among_the_results_lead_nowhere(world: World) -> None:
    links_lead_nowhere(world)


def test_a_pipe_in_the_place_of_events_ends_as_an_error_and_freezes_nobody(world: World) -> None:
    a_pipe_freezes_nobody(world)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("truncate", "rank 0 ended well, and its events-0.jsonl was pushed without run_start and run_stop"),
        ("remove", "rank 0 ended well, and there is no events-0.jsonl among what could be pushed"),
        ("exchange", "rank 0 ended well, and there is no events-0.jsonl among what could be pushed"),
    ],
)
def test_what_became_of_the_events_after_their_end_was_seen_is_no_ok(world: World, last: str, reason: str) -> None:
    record = ended(world, world.cell(last=last))
    assert (record["status"], record["kind"], record["performance"]) == ("error", "result", None)
    assert record["status_reason"].startswith(reason)
    assert {"cell.json", "logs/node-0.log", "logs/rank-0.log"} <= {file["path"] for file in record["files"]}, "ours are pushed all the same"
