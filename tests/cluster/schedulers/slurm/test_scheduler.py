"""The Slurm scheduler without a Slurm: what its pure parts say."""

from typing import Any

import pytest

from base.errors import AllocationError, UnsupportedRequest
from cluster.schedulers import plan_allocation, slurm
from cluster.schedulers.inside_job import facts_of, has_processes, reason_of
from cluster.schedulers.slurm import srun_environment
from cluster.schedulers.slurm.answers import slurm_environment
from cluster.types import Allocation, AllocationRequest, Node
from tests.cluster import builders
from tests.cluster.schedulers.slurm.squeue import squeue_job

JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8", "SLURM_CONF": "/etc/s.conf"}
ADDRESSES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"}
INFO = {"job_id": "17", "state": "RUNNING", "restarts": 1, "submitted": 100, "started": 200, "end": 800, "limit_s": "00:10:00"}


def request(**changes: Any) -> AllocationRequest:
    return AllocationRequest(**{"nodes": 2, "gpus_per_node": 4, "largest_nodes": 4, "device": "cuda", "gres": 4, **changes})


def allocation(**changes: Any) -> Allocation:
    return builders.allocation("slurm", "n1", "n2", **{"job_id": "17", "device": "cuda", "gres": 4, "cpus_per_node": 16, **changes})


def test_a_job_s_nodes_are_candidates_where_it_has_more_than_are_asked() -> None:
    found = slurm.plan_allocation(request(), {"ENVIRONMENT": "BATCH"}, JOB, ADDRESSES, "22.05.8")
    assert [node.name for node in found.nodes] == ["n1", "n2", "n3"]
    assert (found.job_id, found.restart_count, found.gres, found.cpus_per_node, found.own_job) == ("17", 0, 4, 8, False)
    assert (found.exclusive, found.device, found.scheduler_version, found.deadline) == (True, "cuda", "22.05.8", None)


def test_a_run_of_a_spread_submission_sees_the_nodes_of_its_set_only() -> None:
    addresses = {f"n{number}": f"10.0.0.{number}" for number in range(1, 6)}
    found = [slurm.plan_allocation(request(node_set=(index, 2)), {"SLIPWAY_SUBMISSION": "s"}, JOB, addresses, None) for index in (0, 1)]
    assert [[node.name for node in one.nodes] for one in found] == [["n1", "n2"], ["n3", "n4"]]
    assert not any(one.own_job for one in found)
    with pytest.raises(AllocationError, match=r"2 nodes were asked, 1 granted .* in 3 sets\); submit it with --nodes=6"):
        slurm.plan_allocation(request(node_set=(1, 3)), {}, JOB, addresses, None)


@pytest.mark.parametrize(
    ("environ", "own"),
    [({"ENVIRONMENT": "BATCH"}, True), ({"ENVIRONMENT": "BATCH", "SLIPWAY_SUBMISSION": "s"}, False), ({}, False)],
)
def test_a_job_is_our_own_in_a_batch_script_that_is_for_this_run(environ: dict[str, str], own: bool) -> None:
    assert slurm.plan_allocation(request(nodes=3), environ, JOB, ADDRESSES, None).own_job is own


def test_restart_count_and_end_are_read_where_slurm_says_them() -> None:
    job = {**JOB, "SLURM_RESTART_COUNT": "2", "SLURM_JOB_END_TIME": "1700000000"}
    found = slurm.plan_allocation(request(share_nodes=True), {}, job, ADDRESSES, None)
    assert (found.restart_count, found.deadline, found.exclusive) == (2, 1700000000.0, False)


@pytest.mark.parametrize(
    ("said", "mib"),
    [
        ({"SLURM_MEM_PER_NODE": "2000"}, 2000),
        ({"SLURM_MEM_PER_CPU": "500"}, 4000),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({}, None),  # --mem=0
    ],
)
def test_the_memory_of_the_job_on_each_node_is_read_where_slurm_says_it(said: dict[str, str], mib: int | None) -> None:
    found = slurm.plan_allocation(request(memory_per_node_bytes=1), {}, {**JOB, **said}, ADDRESSES, None)
    assert found.memory_per_node_bytes == (mib and mib << 20)


def test_one_srun_starts_all_node_programs() -> None:
    (launch,) = slurm.launches(allocation(), ("python", "-m", "workflow.run.node"))
    assert launch.nodes == (0, 1)
    assert " ".join(launch.argv) == (
        "srun --jobid=17 --overlap --nodes=2 --nodelist=n1,n2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=16 --gres=gpu:4 --mem=0 "
        "--mpi=none --kill-on-bad-exit=0 --wait=0 --input=all --export=ALL python -m workflow.run.node --nodes SLURMD_NODENAME=n1,n2"
    )


def test_without_gpus_and_known_cores_srun_is_not_asked_for_them() -> None:
    (launch,) = slurm.launches(allocation(gres=0, cpus_per_node=None, nodes=(Node(name="n1", hostname="n1", address="a"),)), ("x",))
    assert not [word for word in launch.argv if word.startswith(("--gres", "--cpus-per-task"))]


def test_srun_gets_the_job_and_no_orders_of_others() -> None:
    environ = {
        "PATH": "/bin",
        "SLURM_CPU_BIND": "mask_cpu:0x1",
        "SLURM_JOB_ID": "17",
        "SRUN_DEBUG": "3",
        "SLURM_EXPORT_ENV": "NONE",
        "A": "b",
    }
    bent = {"SLURM_STEP_ID": "0", "SLURM_MEM_PER_NODE": "5", "SLURM_CONF": "/c", "PATH": "/bin"}
    assert srun_environment(bent, slurm_environment(bent)) == {"SLURM_CONF": "/c", "PATH": "/bin"}
    assert srun_environment(environ, JOB) == {"PATH": "/bin", "A": "b", "SLURM_JOB_ID": "17", "SLURM_CONF": "/etc/s.conf"}


def test_a_plan_outside_of_a_job_has_nodes_without_names() -> None:
    found = plan_allocation("slurm", request(cpus_per_node=32), {})
    assert [(node.name, node.address, len(node.cores), len(node.gpus)) for node in found.nodes] == [
        ("node-0", "<node-0>", 32, 4),
        ("node-1", "<node-1>", 32, 4),
    ]


def test_a_shared_job_is_never_requeued() -> None:
    with pytest.raises(UnsupportedRequest, match="not this run's alone"):
        slurm.requeue(allocation(own_job=False))


@pytest.mark.parametrize(
    ("changes", "restart_count", "expected"),
    [
        ({}, 1, True),
        ({}, 0, False),
        ({"state": "COMPLETING"}, 1, True),
        ({"state": "PENDING"}, 1, False),
        ({"state": "SUSPENDED"}, 1, True),
        *[({"state": state}, 1, False) for state in ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")],
    ],
)
def test_whether_a_start_of_a_job_still_runs(changes: dict[str, Any], restart_count: int, expected: bool) -> None:
    assert has_processes(squeue_job(**INFO | changes), builders.holder("slurm", "17", restart_count)) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"restarts": 2}, "requeued"),
        ({"restarts": 2, "state": "COMPLETING"}, "requeued"),
        ({"state": "PREEMPTED"}, "preempted"),
        *[({"state": state, "preempted": 700}, "preempted") for state in ("RUNNING", "COMPLETING", "CANCELLED", "PREEMPTED")],
        ({"restarts": 2, "preempted": 700}, "requeued"),
        ({"state": "COMPLETING", "end": 300}, "cancelled"),
        ({"state": "COMPLETING"}, "timeout"),
        ({"state": "COMPLETING", "reason": "NodeDown", "end": 300}, "node_lost"),
        ({"state": "COMPLETING", "limit_s": "UNLIMITED"}, "cancelled"),
        ({"state": "TIMEOUT"}, "timeout"),
        ({"state": "NODE_FAIL"}, "node_lost"),
        ({"state": "CANCELLED"}, "cancelled"),
        ({"state": "COMPLETED"}, None),
    ],
)
def test_why_a_job_ends(changes: dict[str, Any], expected: str | None) -> None:
    assert reason_of(squeue_job(**INFO | changes), 1) == expected


def test_the_times_of_a_job_are_those_of_this_start() -> None:
    assert facts_of(squeue_job(**INFO), 1) == {"deadline": 800.0, "submitted": 100.0, "started": 200.0}
    assert facts_of(squeue_job(**INFO | {"limit_s": "UNLIMITED"}), 1)["deadline"] is None
    assert facts_of(squeue_job(**INFO), 0) == facts_of(None, 0) == {"deadline": None, "submitted": None, "started": None}
