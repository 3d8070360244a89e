"""Which scheduler is here, and what each is asked."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.schedulers import with_jobs
from extras.doctor import schedulers
from extras.doctor.schedulers import BATCH, find_scheduler, judge_choice, judge_lsf_queue
from extras.doctor.types import Context, worst
from workflow.study.site import Site, local_site


def site(**keys: object) -> Site:
    return replace(local_site(has_gpu=False), **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ({"sbatch", "srun", "scontrol"}, "slurm"),
        ({"sbatch"}, "local"),
        ({"bsub", "lsid"}, "lsf"),
        ({"qsub", "pbsnodes", "qstat"}, "pbs"),
        ({"qsub", "qconf"}, "sge"),
        (set(), "local"),
    ],
)
def test_which_scheduler_is_here(commands: set[str], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in commands:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_scheduler() == found


@pytest.mark.parametrize(
    ("site", "here", "version", "level"),
    [
        ("slurm", "slurm", "slurm 23.02.1", "ok"),
        ("slurm", "local", "", "error"),
        ("local", "slurm", "slurm 23.02.1", "note"),
        ("local", "slurm", "", "ok"),
        ("local", "local", "", "ok"),
    ],
)
def test_the_scheduler_of_the_site_against_the_one_that_is_here(site: str, here: str, version: str, level: str) -> None:
    assert worst(judge_choice(site, here, version)) == level


def test_each_scheduler_with_jobs_is_checked() -> None:
    assert set(BATCH) == set(with_jobs())


def test_of_several_that_are_installed_the_sites_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_scheduler("sge") == "local"
    for name in ("sbatch", "srun", "scontrol", "qsub", "qconf"):
        (tmp_path / name).touch(mode=0o755)
    assert (find_scheduler(), find_scheduler("sge"), find_scheduler("pbs")) == ("slurm", "sge", "slurm")


def test_a_queue_of_lsf_must_take_exclusive_jobs() -> None:
    answer = (Path(__file__).parents[2] / "captured" / "lsf" / "bqueues-l.txt").read_text()
    assert [finding.level for finding in judge_lsf_queue("normal", answer, False)] == ["error"]
    assert list(judge_lsf_queue("normal", answer, True)) == []
    assert list(judge_lsf_queue("gpu", "SCHEDULING POLICIES:  EXCLUSIVE FAIRSHARE\n", False)) == []


def test_what_a_server_of_pbs_says() -> None:
    server = {"s": {"server_state": "Active", "pbs_version": "23", "job_history_enable": "True"}}
    assert [finding.level for finding in schedulers.judge_pbs_server(server)] == ["ok"]
    assert [finding.level for finding in schedulers.judge_pbs_server({"s": {"server_state": "Idle"}})] == ["warning", "note"]
    assert list(schedulers.judge_pbs_sizes(site(cpus_per_node=8))) == []
    assert [finding.level for finding in schedulers.judge_pbs_sizes(site(gpus_per_node=2, share_nodes=True))] == ["note", "warning"]


def test_a_queue_of_grid_engine_that_kills_soon() -> None:
    assert [finding.level for finding in schedulers.judge_sge_queue("q", {"slots": "8", "notify": "00:01:00"})] == ["ok"]
    assert [finding.level for finding in schedulers.judge_sge_queue("q", {"slots": "8", "notify": "00:00:01"})] == ["ok", "warning"]


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("slurm", {"queue": "gpu", "gpus_per_node": 8}, "salloc --nodes=2 --exclusive --time=10 --partition=gpu --gres=gpu:8"),
        ("lsf", {"queue": "q", "cpus_per_node": 4}, "bsub -Is -n 8 -R span[ptile=4] -W 10 -q q"),
        ("sge", {"parallel_environment": "mpi 16", "account": "a"}, "qrsh -now no -cwd -V -pe mpi 32 -l h_rt=600 -P a"),
        (
            "pbs",
            {"gpus_per_node": 2},
            "qsub -I -l select=2:ncpus=1:mpiprocs=1:ngpus=2 -l place=scatter:exclhost -l walltime=00:10:00 --",
        ),
    ],
)
def test_the_command_that_gets_two_nodes(name: str, keys: dict[str, object], words: str) -> None:
    assert " ".join(BATCH[name].allocation(site(**keys))) == words


@pytest.mark.processes
def test_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-3]" ] && printf "n1\\nn2\\nn3\\n"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slurm = site(scheduler="slurm")
    inside = schedulers.surroundings({"SLURM_JOB_ID": "999999999", "SLURM_JOB_NODELIST": "n[1-3]"}, slurm)
    assert (inside.place, inside.scheduler, inside.job_id, inside.nodes) == ("job", "slurm", "999999999", ("n1", "n2", "n3"))
    assert schedulers.surroundings({"LSB_JOBID": "5"}, slurm).scheduler == "lsf"
    assert schedulers.surroundings({"LSB_JOBID": "5"}, site()).place == "alone"


@pytest.mark.processes
@pytest.mark.parametrize("name", BATCH)
def test_commands_that_know_no_cluster_are_no_scheduler(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (*schedulers.SIGNS[name].commands, BATCH[name].probe[0]):
        (tmp_path / command).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    found = schedulers.surroundings({}, site(scheduler=name))
    assert (found.place, found.scheduler) == ("login", "local")
    assert found.describe().endswith(f"outside of any allocation of {name}")


@pytest.mark.slow
def test_a_controller_that_is_silent_is_an_error_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scontrol", "sinfo", "squeue", "sbatch", "srun"):
        (tmp_path / name).write_text('#!/bin/sh\n[ "$1" = --version ] && exit\nexec tail -f /dev/null\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    context = Context(site=site(scheduler="slurm"), place="login", hostname="login", scheduler="slurm")
    (found,) = schedulers.check_scheduler(context)
    assert found.level == "error"
    assert "Slurm's controller does not answer `scontrol --oneliner show partition`" in found.text
    assert found.advice.startswith("wait and ask again")
