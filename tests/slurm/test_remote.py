"""`slipway remote` against a real login node: the line is cut, the laptop dies, and the same command again goes on."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.cluster.ssh import sshd
from tests.minicluster import Cluster
from tests.slurm.cuts import PHASES, play

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(sshd.missing() is not None, reason="no sshd in namespaces here: root, openssh-server, iproute2"),
]


@pytest.mark.parametrize(("transport", "cuts", "seed"), [("ssh", 20, 14), ("paramiko", 20, 15)])
def test_twenty_cuts_lose_nothing_and_do_nothing_twice(cluster: Cluster, tmp_path: Path, transport: str, cuts: int, seed: int) -> None:
    if transport == "paramiko" and importlib.util.find_spec("paramiko") is None:
        pytest.skip("paramiko is not installed: the extra remote")
    counts = play(cluster, tmp_path, cuts=cuts, seed=seed, transport=transport)
    assert counts.total() == cuts
    assert {phase for phase, _ in counts} == set(PHASES)
