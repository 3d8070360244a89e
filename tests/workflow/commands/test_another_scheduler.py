"""What commands and dag ask of a scheduler, with one that none of them knows: who asks for Slurm by name fails here."""

from collections.abc import Iterator

import pytest

from base.errors import ConfigError, SubmitError
from cluster.schedulers import SCHEDULERS
from cluster.schedulers.jobs import RUN, QueuedJob, mark_of
from tests.cluster.fake_pbs import jobs as fake_pbs_jobs
from tests.workflow.commands.conftest import House
from workflow.commands.run import CommandLine, child_argv, profile_name
from workflow.dag.execution import Mode, refuse_wrong_executor, refuse_wrong_way
from workflow.dag.graph import Graph
from workflow.dag.queue_view import describe_cancelled
from workflow.dag.refusals import load_graph

pytestmark = pytest.mark.processes

SITE = "storage: storage\ncache: {path: /local/slipway}\nscheduler: pbs\ndevice: cpu\nqueue: main\n"


@pytest.fixture(autouse=True)
def pbs(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slipway with one line more in SCHEDULERS, and a site that says it."""
    monkeypatch.setitem(SCHEDULERS, "pbs", "tests.cluster.fake_pbs")
    house.site.write_text(SITE)
    yield
    fake_pbs_jobs.QUEUE.clear()
    fake_pbs_jobs.SUBMITTED.clear()


def graph(house: House, mode: Mode | None) -> Graph:
    return load_graph({"site": str(house.site)}, [house.path], house.root, {}, mode)


def test_the_plan_says_what_it_would_be_asked(house: House) -> None:
    plan = house.json("plan")
    assert plan["slurm"] is None
    assert sum(kind["jobs"] for kind in plan["pbs"]["jobs"]) == 8
    assert all(kind["qsub"].startswith("qsub -l select=") for kind in plan["pbs"]["jobs"])
    assert plan["pbs"]["submit"]["qsub"] == ["-l select=2", "-N slipway-small-<token>"]
    assert "qsub -l select=2 -N" in house("plan").out
    cell = house.load().cells[0].cell_id
    asked = f"qsub -l select={house.load().cells[0].nodes} -N slipway-{cell}-r1.<token>"
    assert house.json("plan", "--cell", cell)["pbs"] == {"qsub": asked}
    assert asked in house("plan", "--cell", cell).out


def test_the_study_is_submitted_in_one_job(house: House) -> None:
    shown = house("submit", "--print")
    assert (shown.code, shown.out.splitlines()[1]) == (0, "#PBS -l select=2"), shown.err
    said = house("submit")
    assert said.code == 0, said.err
    (job,) = fake_pbs_jobs.SUBMITTED
    assert (job.size.nodes, job.size.queue) == (2, "main")
    assert "end it: qdel 7.server" in said.out
    assert "-7.server.log" in said.out
    assert any(word.endswith("profiles/pbs-allocation") for word in job.argv)
    fake_pbs_jobs.QUEUE.append(QueuedJob(job_id="7.server", name=job.name, stage="waits", state="q", why="held"))
    again = house("submit")
    assert again.code == SubmitError.exit_code
    assert "or end it: `qdel 7.server`" in again.err
    assert house.json("status")["queued"] == 8
    assert house("submit", "--nodes", "9").code == SubmitError.exit_code


def test_a_run_in_its_queue_is_queued(house: House) -> None:
    study = house.load()
    job = QueuedJob(
        job_id="8.server",
        stage="waits",
        state="q",
        why="no nodes are free",
        rule=RUN,
        wildcards=study.runs[0].run_id,
        mark=mark_of(study.name, str(study.results_dir)),
    )
    fake_pbs_jobs.QUEUE.append(job)
    assert house.json("status")["runs"][0]["reason"] == "job 8.server waits: no nodes are free"
    assert "`qdel 8.server` ends what is left" in describe_cancelled(fake_pbs_jobs, [job], [job])


def test_each_run_is_a_job_of_it(house: House) -> None:
    found = graph(house, Mode(way="jobs"))
    assert profile_name(found.study.site, {}) == "pbs"
    assert profile_name(found.study.site, {"PBS_JOBID": "7"}) == "pbs-allocation"
    words = CommandLine(study=None, config={}, rest=[])
    argv = child_argv("/profiles/pbs-allocation", house.path, house.root, words, {"PBS_NUM_NODES": "3"})
    assert argv[argv.index("--resources") + 1] == "nodes=3"
    assert set(found.run_resources) == {"nodes", "runtime", "memory_mb", "whole_nodes", "queue"}
    assert found.environment({})["SLIPWAY_SUBMITS"] == f"pbs {mark_of(found.study.name, found.results_dir)}"
    refuse_wrong_executor("jobs", "slipway")
    with pytest.raises(ConfigError, match="'slipway', found 'slurm'"):
        refuse_wrong_executor("jobs", "slurm")
    with pytest.raises(ConfigError, match="this is not a job of PBS"):
        refuse_wrong_way(found.study.site, "allocation", {})
