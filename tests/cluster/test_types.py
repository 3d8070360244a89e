import json
from dataclasses import asdict
from typing import Any

import msgspec
import pytest

from base.errors import RecordError
from base.typed import read_as
from cluster.types import Allocation, Holder, Node


def node(name: str = "n0", **changes: Any) -> Node:
    return Node(**{"name": name, "hostname": "host", "address": "10.0.0.1", "cores": (0, 1), **changes})


def test_an_allocation_survives_json() -> None:
    nodes = (node(), node("n1", gpus=("GPU-a",), gpu_models=("P100",), interface="ib0"))
    allocation = Allocation(scheduler="x", job_id="1", nodes=nodes, device="cuda", exclusive=True, deadline=1.5)
    assert msgspec.json.decode(json.dumps(asdict(allocation)), type=Allocation) == allocation
    assert allocation.head == nodes[0]
    hash(allocation)


@pytest.mark.parametrize("fields", [{"nodes": ()}, {"nodes": (node(), node())}, {"device": "gpu"}])
def test_an_allocation_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    known: dict[str, Any] = {"scheduler": "x", "job_id": "1", "nodes": (node(),), "device": "cpu", "exclusive": True}
    with pytest.raises(ValueError, match=next(iter(fields))):
        Allocation(**{**known, **fields})


def test_a_node_has_a_name_and_a_model_per_gpu() -> None:
    with pytest.raises(ValueError, match="name"):
        node("a/b")
    with pytest.raises(ValueError, match="gpu_models"):
        node(gpus=("GPU-a", "GPU-b"), gpu_models=("P100",))


def test_a_holder_is_taken_from_a_mapping_with_more_in_it() -> None:
    holder = Holder(scheduler="local", job_id="1", restart_count=0, host="h", pid=1, pid_start=2, boot_id="b", pid_namespace="p")
    assert read_as(Holder, {**asdict(holder), "token": "x"}, "the holder") == holder
    with pytest.raises(RecordError):
        read_as(Holder, {"pid": 1}, "the holder")
