"""Which cgroup of a job its containers may be put into: what /proc/self/cgroup holds under schedulers, with either version and none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.machine import MOST, core_counts, facts, interfaces, parent_of, parse_membership

SLURM_V1 = """\
12:memory:/slurm/uid_1000/job_42/step_0/task_0
11:devices:/slurm/uid_1000/job_42/step_0/task_0
7:cpuset:/slurm/uid_1000/job_42/step_0/task_0
5:cpu,cpuacct:/system.slice/slurmd.service
4:freezer:/slurm/uid_1000/job_42/step_0
1:name=systemd:/system.slice/slurmd.service
"""
PBS_V1 = (
    "9:memory:/pbs_jobs.service/jobid/123.server\n8:cpuset:/pbs_jobs.service/jobid/123.server\n1:name=systemd:/system.slice/pbs.service\n"
)
SGE_V1 = "4:cpuset:/sge/42.1\n3:memory:/\n"
HYBRID = "9:name=systemd:/\n6:freezer:/slurm_n1/uid_0/job_42/step_0\n4:memory:/\n0::/\n"
SCOPE = "/system.slice/slurmstepd.scope"


@pytest.mark.parametrize(
    ("text", "scheduler", "job", "path", "why"),
    [
        (f"0::{SCOPE}/job_42/step_0/user/task_0\n", "slurm", "42", f"{SCOPE}/job_42/step_0/user", "the job's own"),
        (f"0::{SCOPE}/job_42/step_batch/user/task_special\n", "slurm", "42", f"{SCOPE}/job_42/step_batch/user", "the job's own"),
        (
            "0::/system.slice/n1_slurmstepd.scope/job_42/step_3/user/task_1\n",
            "slurm",
            "42",
            "/system.slice/n1_slurmstepd.scope/job_42/step_3/user",
            "own",
        ),
        (f"0::{SCOPE}/job_421/step_0/user/task_0\n", "slurm", "42", None, "is not a cgroup of job 42"),
        (f"0::{SCOPE}/job_4.2/step_0/user/task_0\n", "slurm", "4.2", f"{SCOPE}/job_4.2/step_0/user", "the job's own"),
        (f"0::/../..{SCOPE}/job_42/step_0/user/task_0\n", "slurm", "42", None, "another cgroup namespace"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "slurm", "42", None, "is not a cgroup of job 42"),
        (SLURM_V1, "slurm", "42", None, "cgroup v1"),
        (HYBRID, "slurm", "42", None, "cgroup v1"),
        (PBS_V1, "pbs", "123.server", None, "cgroup v1"),
        ("0::/pbs_jobs.service/jobs/123.server\n", "pbs", "123.server", None, "holds the job's processes"),
        (SGE_V1, "sge", "42", None, "cgroup v1"),
        ("0::/sge/42.1\n", "sge", "42", None, "holds the job's processes"),
        ("0::/lsf/c1/job.42.1234.5678/t.1\n", "lsf", "42", "/lsf/c1/job.42.1234.5678", "the job's own"),
        ("0::/lsf/c1/job.42.1234.5678\n", "lsf", "42", None, "holds the job's processes"),
        ("0::/user.slice\n", "local", "42", None, "jobs of local have no cgroup"),
        ("1:name=systemd:/init.scope\n", "slurm", "42", None, "no cgroups"),
        ("", "slurm", "42", None, "no cgroups"),
    ],
)
def test_a_parent_is_a_group_of_the_job_in_cgroup_v2_that_may_have_groups(
    text: str, scheduler: str, job: str, path: str | None, why: str
) -> None:
    found = parent_of(text, scheduler, job)
    assert found.path == path
    assert why in found.reason


def test_several_controllers_may_share_a_line_and_a_path_may_hold_colons() -> None:
    assert parse_membership("5:cpu,cpuacct:/a:b\n0::/\n") == {"cpu": "/a:b", "cpuacct": "/a:b", "": "/"}


# What connects a machine to others, from trees as the kernel shows them.


def card(root: Path, name: str, *, state: str = "up", kind: str = "1", speed: str | None = "25000", physical: bool = True) -> None:
    (root / name).mkdir(parents=True)
    values = {"operstate": state, "type": kind} | ({} if speed is None else {"speed": speed})
    for file, value in values.items():
        (root / name / file).write_text(f"{value}\n")
    if physical:
        (root / name / "device").mkdir()


def port(root: Path, name: str, *, state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", layer: str = "InfiniBand") -> None:
    directory = root / name / "ports" / "1"
    directory.mkdir(parents=True)
    for file, value in {"state": state, "rate": rate, "link_layer": layer}.items():
        (directory / file).write_text(f"{value}\n")


def test_cards_and_ports_that_are_up_with_their_rates(tmp_path: Path) -> None:
    net, infiniband = tmp_path / "net", tmp_path / "infiniband"
    card(net, "eno1")
    card(net, "eno2", state="down")
    card(net, "ens3", speed="-1")
    card(net, "ens4", speed=None)
    card(net, "docker0", physical=False)
    card(net, "lo", kind="772", physical=False)
    card(net, "ib0", kind="32")
    port(infiniband, "mlx5_0")
    port(infiniband, "mlx5_1", state="1: DOWN")
    port(infiniband, "mlx5_2", rate="2.5 Gb/sec (1X SDR)", layer="Ethernet")
    assert interfaces(net, infiniband) == [
        {"name": "mlx5_0:1", "kind": "InfiniBand", "mbit_per_s": 400_000},
        {"name": "mlx5_2:1", "kind": "RDMA over Ethernet", "mbit_per_s": 2500},
        {"name": "eno1", "kind": "Ethernet", "mbit_per_s": 25_000},
        {"name": "ens3", "kind": "Ethernet", "mbit_per_s": None},
        {"name": "ens4", "kind": "Ethernet", "mbit_per_s": None},
    ]


def test_a_machine_without_any(tmp_path: Path) -> None:
    assert interfaces(tmp_path / "net", tmp_path / "infiniband") == []


def test_many_are_cut(tmp_path: Path) -> None:
    for index in range(MOST + 3):
        card(tmp_path, f"eth{index}")
    assert len(interfaces(tmp_path, tmp_path / "none")) == MOST


def test_this_machine_counts_its_cores_and_connections() -> None:
    cores = core_counts()
    assert 1 <= cores["sockets"] <= cores["cores"] <= cores["cpus"]
    found = facts()
    assert found["machine_cores"] == cores
    assert found["network"] == interfaces()
