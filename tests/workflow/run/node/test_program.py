"""How a node program finds its position in the allocation."""

from __future__ import annotations

import pytest

from base.errors import NodeLost
from workflow.run.node.program import position_of


def test_a_node_finds_its_position_by_its_name_and_not_by_the_scheduler_s_number() -> None:
    environ = {"SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}
    assert position_of("SLURMD_NODENAME=n2,n1", environ) == 1
    assert position_of("SLURMD_NODENAME=n1,n2", environ) == 0


@pytest.mark.parametrize("environ", [{}, {"SLURMD_NODENAME": "n"}, {"SLURMD_NODENAME": "n1,n2"}])
def test_a_program_on_another_node_refuses_to_start(environ: dict[str, str]) -> None:
    with pytest.raises(NodeLost, match="the nodes of this run are n1,n2"):
        position_of("SLURMD_NODENAME=n1,n2", environ)
