"""Which nodes of its job a run takes first, with every scheduler whose jobs have several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.schedulers import lsf, pbs, sge
from cluster.schedulers.job_nodes import names_for
from cluster.types import AllocationRequest

REQUEST = AllocationRequest(nodes=1, gpus_per_node=1, largest_nodes=1, device="cpu", avoid=("n1",))
ADDRESSES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3", "n4": "10.0.0.4"}


def test_those_of_its_set_and_of_these_last_what_failed_it() -> None:
    assert names_for(REQUEST, tuple(ADDRESSES)) == ("n2", "n3", "n4", "n1")
    assert names_for(replace(REQUEST, node_set=(0, 2)), tuple(ADDRESSES)) == ("n2", "n1")
    assert names_for(replace(REQUEST, node_set=(1, 2)), tuple(ADDRESSES)) == ("n3", "n4")


@pytest.mark.parametrize("scheduler", ["lsf", "pbs", "sge"])
def test_not_with_slurm_alone(scheduler: str) -> None:
    if scheduler == "pbs":
        found = pbs.plan_allocation(REQUEST, {"PBS_JOBID": "7.host"}, ADDRESSES, 0, None)
    elif scheduler == "lsf":
        found = lsf.plan_allocation(REQUEST, {"LSB_JOBID": "7"}, dict.fromkeys(ADDRESSES, 4), ADDRESSES)
    else:
        found = sge.plan_allocation(REQUEST, {"JOB_ID": "7"}, dict.fromkeys(ADDRESSES, 4), ADDRESSES)
    assert [node.name for node in found.nodes] == ["n2", "n3", "n4", "n1"]
