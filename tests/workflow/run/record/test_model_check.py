"""A program that trains another network than the cell asks for makes no row of it."""

from __future__ import annotations

import pytest

from tests.workflow.run.test_runs import ended
from tests.workflow.run.world import World
from workflow.run.record.events import RankEvents, Step, unchecked_model, wrong_model
from workflow.run.record.run_record import measured


def told(*counts: int | None) -> dict[int, RankEvents]:
    step = Step(0.1, None, True, 2, None, None)
    return {rank: RankEvents(start=None if count is None else {"parameters": count}, steps={0: step}) for rank, count in enumerate(counts)}


def test_another_count_is_another_network() -> None:
    assert wrong_model(told(656_080, 656_080), "lenet", 656_080) is None
    wrong = "the program trained another network: lenet has 656080 parameters here, and rank {} tells of 33472"
    assert wrong_model(told(33_472, 33_472), "lenet", 656_080) == wrong.format(0)
    assert wrong_model(told(656_080, 33_472), "lenet", 656_080) == wrong.format(1)
    assert wrong_model(told(None, 33_472), "lenet", 656_080) == wrong.format(1)
    assert wrong_model(told(0), "lenet", 656_080) is not None


def test_no_count_is_told_apart() -> None:
    assert wrong_model(told(None, None), "lenet", 656_080) is None
    assert unchecked_model(told(1, 1), "lenet") == []
    (silent,) = unchecked_model(told(None, None), "lenet")
    assert silent == "the program does not tell how many parameters its network has: whether it is lenet was not checked"
    (one,) = unchecked_model(told(1, None), "lenet")
    assert one.startswith("rank 1 does not tell")
    assert unchecked_model({0: RankEvents()}, "lenet") == [], "it ended before it could"
    assert measured(told(None), 1, 2, "train", ("lenet", 656_080))["warnings"] == [silent]


@pytest.mark.slow
def test_a_run_of_another_network_is_an_error_row(world: World) -> None:
    record = ended(world, world.cell(1, 2, parameters={"1": 33_472}))
    assert (record["status"], record["kind"]) == ("error", "result")
    assert record["status_reason"] == ("the program trained another network: lenet has 426571 parameters here, and rank 1 tells of 33472")


@pytest.mark.slow
def test_a_run_that_tells_no_count_has_a_warning(world: World) -> None:
    record = ended(world, world.cell(parameters={"0": None}))
    assert record["status"] == "ok"
    assert record["training"]["parameters"] is None
    silent = "the program does not tell how many parameters its network has: whether it is lenet was not checked"
    assert record["warnings"] == [silent, *record["busy"]]
