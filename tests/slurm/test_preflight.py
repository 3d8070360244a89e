"""The preflight on nodes with links of their own: healthy, one slow, one pair cut, and the MTU that lets only small packets pass."""

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.preflight.children import ARGV, ROOT, Children, Direct
from tests.minicluster import Cluster
from tests.minicluster.waiting import run
from workflow.run.supervisor.run_scope import RunEnded

pytestmark = pytest.mark.slow


@pytest.fixture
def preflight(cluster: Cluster) -> Iterator[Direct]:
    """All nodes of the cluster; not begun."""
    yield from on(cluster)


def on(cluster: Cluster) -> Iterator[Direct]:
    def start(index: int) -> subprocess.Popen[Any]:
        return cluster.popen(
            cluster.nodes[index], ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
        )

    with Children([cluster.spec.address(node) for node in cluster.nodes], start) as children:
        yield Direct(children, cluster.nodes, "eth0")


def netns(cluster: Cluster, node: str, *argv: str) -> None:
    run(["nsenter", f"--net=/run/netns/{cluster.spec.netns(node)}", *argv])


def test_healthy_nodes_are_not_named(preflight: Direct) -> None:
    preflight.run()
    assert not preflight.record.findings


def test_a_node_with_a_slow_link_is_named_and_the_run_goes_on(cluster: Cluster, preflight: Direct) -> None:
    cluster.set_bandwidth(link_mbit=20, node="n2")
    try:
        preflight.run()
    finally:
        netns(cluster, "n2", "tc", "qdisc", "del", "dev", "eth0", "root")
        run(["tc", "-n", cluster.spec.netns("switch"), "qdisc", "del", "dev", "n2", "root"])
    (finding,) = preflight.findings
    assert finding.nodes == (1,)
    assert finding.text.startswith("n2 is slow on the network over eth0: it sends at ")
    assert 2 < preflight.record.rate_mbit_min < 40  # with losses, less than the link could
    assert preflight.record.slowest is not None
    assert "n2" in (preflight.record.slowest.from_, preflight.record.slowest.to)


def test_a_pair_that_is_cut_is_named_and_ends_the_run(cluster: Cluster, preflight: Direct) -> None:
    netns(cluster, "n2", "nft", "add table inet h7; add chain inet h7 out { type filter hook output priority 0; }")
    netns(cluster, "n2", "nft", f"add rule inet h7 out ip daddr {cluster.spec.address('n3')} drop")
    try:
        with pytest.raises(RunEnded) as ended:
            preflight.run()
    finally:
        netns(cluster, "n2", "nft", "delete table inet h7")
    text = str(ended.value)
    assert ended.value.ending.status == "node_lost"
    assert text.startswith("preflight: the network does not connect these pairs of nodes (2 of ")
    assert re.search(r"n2 \(10\.77\.1\.2 over eth0\) to n3 \(10\.77\.1\.3 port \d+\): no answer within 4 s", text)
    assert re.search(r"n3 \(10\.77\.1\.3 over eth0\) to n2 \(10\.77\.1\.2 port \d+\): no answer within 4 s", text)
    assert "n1" not in text


def test_small_packets_pass_and_large_ones_do_not(cluster: Cluster, preflight: Direct) -> None:
    netns(cluster, "n1", "nft", "add table inet h7; add chain inet h7 in { type filter hook input priority 0; }")
    netns(cluster, "n1", "nft", f"add rule inet h7 in ip saddr {cluster.spec.address('n2')} meta length gt 1400 drop")
    try:
        with pytest.raises(RunEnded, match=r"n2 \(10.77.1.2 over eth0\) to n1 .*they connect, but no data passes"):
            preflight.run()
    finally:
        netns(cluster, "n1", "nft", "delete table inet h7")
