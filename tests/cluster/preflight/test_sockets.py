"""The probes on real sockets: a child per node, each on a loopback address of its own."""

import socket
from collections.abc import Mapping

import pytest

from cluster.preflight.rates import Sample
from tests.cluster.preflight.children import Children

pytestmark = pytest.mark.slow


def children_of(nodes: int, tokens: Mapping[int, bytes] | None = None) -> Children:
    children = Children([f"127.0.0.{index + 2}" for index in range(nodes)], tokens=tokens)
    children.listen()
    return children


@pytest.mark.parametrize("nodes", [2, 3])
def test_all_reach_all_and_exchange(nodes: int) -> None:
    with children_of(nodes) as children:
        for index, answer in enumerate(children.reach()):
            assert answer["reached"][index] is None
            assert all(reach[0] < 4 and reach[1] is None for other, reach in enumerate(answer["reached"]) if other != index)
        for attempt in range(2):
            for index, answer in enumerate(children.measure(attempt)):
                assert [rate is None for rate in answer["rates"]] == [other == index for other in range(nodes)]
                assert all(Sample(*rate).bytes > 0 for rate in answer["rates"] if rate)


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    with children_of(3) as children:
        with socket.create_server(("127.0.0.3", 0)) as server:
            port = server.getsockname()[1]
        children.peers[1] = ["127.0.0.3", port]
        first, second, third = (answer["reached"] for answer in children.reach())
        assert first[1] == third[1] == [None, "Connection refused"]
        assert second[0][1] is None
        assert first[2][1] is None


def test_a_listener_that_is_not_ours_is_told() -> None:
    with children_of(2) as children, socket.create_server(("127.0.0.3", 0)) as stranger:
        children.peers[1] = list(stranger.getsockname())
        answer, _ = children.reach()
        assert answer["reached"][1] == [None, "it connects, but the other end says nothing within 4 s"]


def test_who_does_not_know_the_token_is_not_let_in() -> None:
    with children_of(3, {1: bytes(32)}) as children:
        for index, answer in enumerate(children.reach()):
            for other, reach in enumerate(answer["reached"]):
                if other != index:
                    assert (reach[1] is None) == (1 not in (index, other))


def test_a_node_that_dies_between_leaves_the_others_with_what_they_know() -> None:
    with children_of(3) as children:
        children.reach()
        children.processes[2].kill()
        children.processes[2].wait()
        for index in range(2):
            children.send(index, do="measure", attempt=0, bytes=1 << 20, limit_s=1.0)
        dead = children.processes.pop()
        first, second = children.hear()
        assert first["rates"][1] is not None
        assert second["rates"][0] is not None
        assert first["rates"][2] is None
        assert dead.stdin is not None
        assert dead.stdout is not None
        dead.stdin.close()
        dead.stdout.close()
