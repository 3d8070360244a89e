"""What the plan says a study will take: a bound, which the limit is checked against, and an estimate by what runs took before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from base.errors import ConfigError
from tests.workflow.commands.conftest import House
from workflow.dag.requirements import Past, estimate_of, past_runs, refuse_over_budget
from workflow.study.publishing import publish_resolved
from workflow.study.study import Study

ROOT = Path(__file__).parents[3]
SLURM = "storage: storage\ncache: {path: cache}\nscheduler: slurm\ngpus_per_node: 8\n"


def past(study: Study, nodes: int, batch_size: int, run_s: float, training_s: float, device: str = "cpu") -> Past:
    """A run of one of the study's cells."""
    cell = next(cell for cell in study.cells if (cell.nodes, cell.batch_size) == (nodes, batch_size))
    return Past(cell=cell, device=device, run_s=run_s, training_s=training_s)


@pytest.mark.processes
def test_the_study_of_the_readme_is_accepted_on_a_site_with_gpus(house: House) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    house.path.write_text(text)
    house.site.write_text(SLURM)
    study = house.load()
    refuse_over_budget(study, study.runs)
    plan = house("plan")
    assert "cost, at most: 13.5 GPU hours: 18 runs x walltime 30m00s x processes (limit: 100 GPU hours)" in plan.out
    assert "limits.gpu_hours" not in plan.err


def test_above_the_limit_is_said_which_walltime_fits(house: House) -> None:
    house.site.write_text(SLURM)
    study = house.study(limits={"walltime": "30m", "gpu_hours": 2})
    with pytest.raises(ConfigError, match=r"may take 6\.0 GPU hours .*; valid: at most 2\. Raise the limit, exclude cells, .* to 10m, in"):
        refuse_over_budget(study, study.runs)
    study = house.study(limits={"walltime": "10m", "gpu_hours": 2})
    refuse_over_budget(study, study.runs)


def test_a_cell_that_ran_takes_what_its_runs_took(house: House) -> None:
    study = house.load()
    pasts = [past(study, 1, 32, 10, 4), past(study, 1, 32, 20, 4), past(study, 2, 32, 999, 4), past(study, 1, 32, 500, 4, "cuda")]
    found = estimate_of(pasts[0].cell, "cpu", pasts)
    assert found is not None
    assert (found.seconds, found.from_cell) == (15, pasts[0].cell.cell_id)


def test_another_size_is_scaled_by_its_work_and_the_nearest_counts(house: House) -> None:
    study = house.load()
    target = past(study, 2, 64, 0, 0).cell
    near, far = past(study, 2, 32, 10, 4), past(study, 1, 32, 1000, 900)
    found = estimate_of(target, "cpu", [far, near])
    assert found is not None
    assert found.seconds == pytest.approx(6 + 4 * 2)
    assert found.from_cell == near.cell.cell_id
    assert estimate_of(target, "cuda", [far, near]) is None


def test_what_is_not_alike_says_nothing(house: House) -> None:
    before = past(house.load(), 1, 32, 10, 4)
    for base in ({"mode": "infer"}, {"precision": "bf16"}, {"layout": "nhwc"}, {"epochs": 2}):
        assert estimate_of(house.study(base=base).cells[0], "cpu", [before]) is None
    assert estimate_of(house.study(base={"seed": 3}).cells[0], "cpu", [before]) is not None


@pytest.mark.processes
def test_records_of_all_studies_on_the_storage_count(house: House) -> None:
    other = house.study(study="other", axes={"nodes": [1]})
    publish_resolved(other)
    good, failed, torn = (run for run in other.runs if run.cell.batch_size == 32 or run.repeat == 1)
    house.record(good.run_id, "ok")
    house.record(failed.run_id, "oom")
    other.record_path(torn.run_id).parent.mkdir(parents=True)
    other.record_path(torn.run_id).write_text("{")
    (other.results_dir.parent / "broken").mkdir()
    (other.results_dir.parent / "broken" / "study.json").write_text("[]")
    study = house.study(study="small")
    assert [found.cell.cell_id for found in past_runs(study.site.storage, study.cells)] == [good.cell.cell_id]
    out = house("plan").out
    assert "8 runs x walltime 30m00s" in out
    own = sum(run.cell.cell_id == good.cell.cell_id for run in study.runs)
    assert f"{own} runs by earlier runs of their cells, {len(study.runs) - own} runs by the work of cells of other sizes" in out
    plan = house.json("plan")
    assert (plan["estimate"]["own"], plan["estimate"]["scaled"], plan["estimate"]["unknown"]) == (own, len(study.runs) - own, 0)
    assert plan["gpu_hours"] == {"planned": 0.0, "limit": 100.0}
    assert all(cell["estimate"]["from_cell"] == good.cell.cell_id for cell in plan["cells"])


@pytest.mark.processes
def test_without_records_there_is_no_estimate(house: House) -> None:
    out = house("plan").out
    assert "cost, at most: 6.0 process hours on the CPU: 8 runs x walltime 30m00s x processes (limit: 100 GPU hours)" in out
    assert f"cost, estimated: not known: no run like these has a result in {house.root}/storage yet" in out
    assert house.json("plan")["estimate"]["unknown"] == 8


@pytest.mark.processes
def test_a_finished_study_costs_nothing(house: House) -> None:
    for run in house.load().runs:
        house.record(run.run_id, "ok")
    assert "cost: nothing is left to run" in house("plan").out
