"""How `slipway run` ends where another start of the study had some of its runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from base.errors import LeaseError, RecordError
from cluster.holder import holder_of
from tests.workflow.commands.conftest import House
from workflow.commands.run import end
from workflow.dag.graph import Graph
from workflow.run.storage.lease import new_lease
from workflow.study.paths import run_dir

pytestmark = pytest.mark.processes
FAILED = "Error in rule {}:\n    message: None\n"


@pytest.fixture
def ended(house: House, tmp_path: Path) -> Callable[..., None]:
    """Snakemake has ended with 1, since jobs of those rules have failed; `asked`: the receipts that it was to make."""

    def call(asked: list[str], *rules: str) -> None:
        (log := tmp_path / "snakemake.log").write_text("".join(FAILED.format(rule) for rule in rules))
        end(Graph(house.load(), retry_failed=False), asked, 1, (), log, table=False)

    return call


def hold(house: House, run_id: str) -> None:
    """By this process."""
    path = run_dir(house.load().results_dir, run_id)
    path.mkdir(parents=True, exist_ok=True)
    (path / "lease.json").write_text(json.dumps(new_lease(holder_of(os.getpid(), "local", "1", 0), 1).to_json()))


def test_who_has_the_runs_that_are_left_is_named(house: House, ended: Callable[..., None]) -> None:
    first, second, third = (run.run_id for run in house.load().runs[:3])
    house.record(third, "ok")
    hold(house, first)
    who = (
        rf"1 run is at work in another start: {first}, attempt 1: process {os.getpid()} on .*; when that has ended, the same command finds"
    )
    with pytest.raises(LeaseError, match=who):
        ended([first, third], "stage_train_push")
    with pytest.raises(RecordError, match="2 runs have no result; `slipway status "):
        ended([first, second, third], "stage_train_push")


def test_a_retry_that_was_prevented_is_no_result(house: House, ended: Callable[..., None]) -> None:
    run_id = house.load().runs[0].run_id
    house.record(run_id, "error")
    with pytest.raises(RecordError, match="1 run has no new result; "):
        ended([f"{run_id}.after-1"], "stage_train_push")


def test_who_has_a_failed_run_that_is_to_be_retried_is_named_too(house: House, ended: Callable[..., None]) -> None:
    run_id = house.load().runs[0].run_id
    house.record(run_id, "error")
    hold(house, run_id)
    with pytest.raises(LeaseError, match=rf"1 run is at work in another start: {run_id}, attempt 1: process {os.getpid()} "):
        ended([f"{run_id}.after-1"], "stage_train_push")


@pytest.mark.slow
def test_where_another_start_made_the_results_the_report_is_made_and_all_is_well(house: House, ended: Callable[..., None]) -> None:
    study = house.load()
    for run in study.runs:
        house.record(run.run_id, "ok")
    asked = [run.run_id for run in study.runs]
    with pytest.raises(RecordError, match="the report is not complete: page failed"):
        ended(asked, "page")
    assert not (study.results_dir / "report.html").exists()
    ended(asked, "stage_train_push")
    assert (study.results_dir / "report.html").exists()
