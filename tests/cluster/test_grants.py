from typing import Any

import msgspec
import pytest

from base.errors import AllocationError
from cluster.grants import complete
from cluster.types import Allocation, Grant, Node, OtherUse
from tests.cluster import builders

GPUS = tuple(f"GPU-{number}" for number in range(8))


def allocation(**changes: Any) -> Allocation:
    return builders.allocation("slurm", "n1", "n2", **{"job_id": "17", "device": "cuda", "gres": 2, "cpus_per_node": 4, **changes})


def grant(name: str, **changes: Any) -> Grant:
    gpus: dict[str, Any] = {"gpus": ("GPU-a", "GPU-b"), "gpu_models": ("P100", "P100"), "gpu_indices": ("0", "1")}
    known: dict[str, Any] = {"node": name, "hostname": f"{name}.here", "address": f"10.0.0.{name[1]}", "interface": "ib0"}
    return Grant(**{**known, "cores": (0, 1, 2, 3), "cpus": 4, "restart_count": 0, **gpus, **changes})


def test_nodes_are_filled_in() -> None:
    done, warnings = complete(allocation(), [grant("n1"), grant("n2")], 2)
    assert warnings == ()
    assert done.nodes[1] == Node(
        name="n2",
        hostname="n2.here",
        address="10.0.0.2",
        interface="ib0",
        cores=(0, 1, 2, 3),
        gpus=("GPU-a", "GPU-b"),
        gpu_models=("P100", "P100"),
    )


def test_where_the_scheduler_has_said_all_nothing_changes() -> None:
    assert complete(allocation(), [None, None], 2) == (allocation(), ())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu_indices": ("0",)}, "node n2: 2 GPUs were asked of the scheduler, 1 granted"),
        ({"gpus": ("GPU-a",), "gpu_models": ("P100",)}, "2 GPUs were asked, nvidia-smi shows 1 of this step: GPU-a"),
        ({"gpus": (), "gpu_models": ()}, "nvidia-smi shows no GPU at all on this node"),
        ({"gpus": ("GPU-a", "GPU-b", "GPU-c"), "gpu_models": ("P100",) * 3}, "shows 3"),
        ({"cpus": 2}, "4 CPUs were asked, 2 granted"),
        ({"restart_count": 1}, "it was requeued"),
        ({"node": "n1"}, "runs on n1"),
    ],
)
def test_another_grant_than_asked_is_refused_by_node(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(AllocationError, match=words):
        complete(allocation(), [grant("n1"), grant("n2", **changes)], 2)


def test_where_no_scheduler_manages_gpus_a_node_of_our_own_may_have_more() -> None:
    free = {"gpus": GPUS, "gpu_models": ("P100",) * 8, "gpu_indices": ()}
    done, _ = complete(allocation(gres=0), [grant("n1", **free), grant("n2", **free)], 2)
    assert done.nodes[0].gpus == ("GPU-0", "GPU-1")
    with pytest.raises(AllocationError, match="shows 8"):
        complete(allocation(gres=0, exclusive=False), [grant("n1", **free), grant("n2", **free)], 2)


def test_a_node_without_any_gpu_is_named_with_what_to_do() -> None:
    bare: dict[str, Any] = {"gpus": (), "gpu_models": (), "gpu_indices": ()}
    words = r"node n2: 2 GPUs were asked, and nvidia-smi shows no GPU at all on this node: the job asked for none \(gpus_per_node in the "
    with pytest.raises(AllocationError, match=words):
        complete(allocation(gres=0), [grant("n1"), grant("n2", **bare)], 2)
    with pytest.raises(AllocationError, match="on this node: its driver is not loaded, or it has none .*; choose other nodes"):
        complete(allocation(), [grant("n1"), grant("n2", **{**bare, "gpu_indices": ("0", "1")})], 2)


def test_different_models_are_told() -> None:
    _, warnings = complete(allocation(), [grant("n1"), grant("n2", gpu_models=("V100", "V100"))], 2)
    assert warnings == ("the GPUs of this run are of 2 models: 2 x P100 on n1; 2 x V100 on n2",)


def test_more_cpus_than_cores_are_told_once_for_all_nodes() -> None:
    done, warnings = complete(allocation(cpus_per_node=8), [grant("n1", cpus=8), grant("n2", cpus=8)], 2)
    assert done.oversubscribed
    assert warnings == ("n1, n2: the scheduler granted 8 CPUs, and 4 may be used: oversubscribed",)


def test_on_the_cpu_more_processes_than_cores_are_told() -> None:
    done, warnings = complete(allocation(device="cpu"), [grant("n1"), grant("n2")], 6)
    assert done.oversubscribed
    assert done.nodes[0].gpus == ()
    assert warnings == ("n1, n2: 6 processes share 4 cores: oversubscribed",)


def test_on_a_shared_node_without_binding_a_job_keeps_to_as_many_cores_as_it_was_granted() -> None:
    free = {"cores": tuple(range(10)), "cpus": 4}
    done, warnings = complete(allocation(exclusive=False), [grant("n1", **free), grant("n2", **free)], 2)
    assert done.nodes[0].cores == (0, 1, 8, 9)
    assert "binds to none" in warnings[0]


USED = (OtherUse("GPU-b", "GPU-b is used by process 7 (x) of alice"), OtherUse("GPU-z", "GPU-z is used by process 8 (x) of bob"))


def test_other_processes_on_our_gpus_are_told() -> None:
    _, warnings = complete(allocation(), [grant("n1", other_use=USED), grant("n2")], 2)
    assert warnings == ("n1: GPU-b is used by process 7 (x) of alice",)
    told = msgspec.json.decode(msgspec.json.encode(grant("n1", other_use=USED)), type=Grant)
    assert told == grant("n1", other_use=USED)


def test_where_the_site_says_so_they_are_refused() -> None:
    with pytest.raises(
        AllocationError, match=r"node n1: GPU-b is used by process 7 \(x\) of alice; the site file says foreign_gpu: refuse"
    ):
        complete(allocation(), [grant("n1", other_use=USED), grant("n2")], 2, "refuse")
    unknown = (OtherUse("", "whether other processes use the GPUs is not known: x"),)
    _, warnings = complete(allocation(), [grant("n1", other_use=unknown), grant("n2", other_use=USED[1:])], 2, "refuse")
    assert warnings == ("n1: whether other processes use the GPUs is not known: x",)


def test_gpus_of_a_shared_node_that_nobody_handed_out_are_refused() -> None:
    free = {"gpu_indices": (), "gpu_rule": "all"}
    assert complete(allocation(gres=0), [grant("n1", **free), grant("n2", **free)], 2)[0].nodes[0].gpus == ("GPU-a", "GPU-b")
    with pytest.raises(AllocationError, match="nothing says which of its 2 are this job's"):
        complete(allocation(gres=0, exclusive=False), [grant("n1", **free), grant("n2", **free)], 2)
