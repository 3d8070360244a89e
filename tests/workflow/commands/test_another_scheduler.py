"""What commands and dag ask of PBS, whose commands are stand-ins on PATH: who asks for Slurm by name fails here."""

import json
import re
from pathlib import Path

import pytest

from base.errors import ConfigError, SubmitError
from base.system import account_name
from cluster.schedulers.jobs import RUN, QueuedJob, Work, mark_of, work_words
from cluster.schedulers.pbs import jobs as pbs_jobs
from tests.workflow.commands.conftest import Commands, House
from workflow.commands.run import CommandLine, child_argv, profile_name
from workflow.dag.execution import Mode, refuse_wrong_way
from workflow.dag.queue_view import describe_cancelled
from workflow.dag.refusals import load_graph

pytestmark = pytest.mark.processes

SITE = "storage: storage\ncache: {path: /local/slipway}\nscheduler: pbs\ndevice: cpu\nqueue: main\n"


class Pbs(Commands):
    """PBS's commands: what qstat shows, what qsub was given."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, monkeypatch)
        for name, does in (("qsub", f"cat > {root}/script; echo 7.server"), ("qselect", f"cat {root}/ids"), ("qstat", f"cat {root}/jobs")):
            self.command(name, does)
        self.shows()

    def shows(self, **keys: object) -> None:
        """One job of ours that waits, or none."""
        (self.root / "ids").write_text("7.server\n" * bool(keys))
        job = {"job_state": "Q", "Job_Owner": f"{account_name()}@here", "comment": "no nodes are free", **keys}
        (self.root / "jobs").write_text(f'{{\n\t"Jobs":{{\n\t\t"7.server":\t{{\n{json.dumps(job)[1:-1]}\n\t\t}}\n\t}}\n}}\n')


@pytest.fixture(autouse=True)
def pbs(house: House, monkeypatch: pytest.MonkeyPatch) -> Pbs:
    house.site.write_text(SITE)
    return Pbs(house.root / "pbs", monkeypatch)


def test_the_plan_says_what_it_would_be_asked(house: House) -> None:
    plan = house.json("plan")
    assert plan["slurm"] is None
    assert sum(kind["jobs"] for kind in plan["pbs"]["jobs"]) == 8
    assert {"-N slipway-small-<token>", "-l select=2:mpiprocs=1"} <= set(plan["pbs"]["submit"]["qsub"])
    cell = house.load().cells[0].cell_id
    asked = f"qsub -N slipway-{cell}-r1.<token> -l select={house.load().cells[0].nodes}:mpiprocs=1 "
    assert asked in house("plan").out
    assert house.json("plan", "--cell", cell)["pbs"]["qsub"].startswith(asked)
    assert asked in house("plan", "--cell", cell).out


def test_the_study_is_submitted_in_one_job(house: House, pbs: Pbs) -> None:
    shown = house("submit", "--print")
    assert (shown.code, "#PBS -l select=2:mpiprocs=1" in shown.out.splitlines()) == (0, True), shown.err
    said = house("submit")
    assert said.code == 0, said.err
    script = pbs.script or ""
    assert "#PBS -q main\n" in script
    assert "/profiles/pbs-allocation\n" in script
    assert "end it: qdel 7.server" in said.out
    assert "-7.server.log" in said.out
    pbs.shows(Job_Name=re.findall(r"#PBS -N (\S+)", script)[0])
    again = house("submit")
    assert again.code == SubmitError.exit_code
    assert "or end it: `qdel 7.server`" in again.err
    assert house.json("status")["queued"] == 8


def test_a_run_in_its_queue_is_queued(house: House, pbs: Pbs) -> None:
    study = house.load()
    work = Work(mark=mark_of(study.name, str(study.results_dir)), rule=RUN, wildcards=study.runs[0].run_id)
    pbs.shows(Variable_List={"SLIPWAY_WORK": work_words(work)})
    found = house.json("status")
    assert found["runs"][0]["reason"] == "job 7.server waits: no nodes are free"
    job = QueuedJob(job_id="7.server", stage="waits", state="queued")
    assert "`qdel 7.server` ends what is left" in describe_cancelled(pbs_jobs, [job], [job])


def test_each_run_is_a_job_of_it(house: House) -> None:
    found = load_graph({"site": str(house.site)}, [house.path], house.root, {}, Mode(way="jobs"))
    assert profile_name(found.study.site, {}) == "pbs"
    assert profile_name(found.study.site, {"PBS_JOBID": "7"}) == "pbs-allocation"
    (hosts := house.root / "hosts").write_text("n1\nn2\nn3\n")
    environ = {"PBS_JOBID": "7", "PBS_NODEFILE": str(hosts)}
    argv = child_argv("/profiles/pbs-allocation", house.path, house.root, CommandLine(), environ)
    assert argv[argv.index("--resources") + 1] == "nodes=3"
    assert set(found.run_resources) == {"nodes", "runtime", "memory_mb", "whole_nodes", "queue"}
    assert found.environment({})["SLIPWAY_SUBMITS"] == f"pbs {mark_of(found.study.name, found.results_dir)}"
    with pytest.raises(ConfigError, match="this is not a job of PBS"):
        refuse_wrong_way(found.study.site, "allocation", {})
