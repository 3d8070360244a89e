import asyncio
import contextlib
import random
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.staging.exchange import Connection, HungUp, PeerError, Piece, frame, have_frames, parse_have
from data_prep.staging.swarm import NOBODY, Swarm, owners_of
from workflow.run.supervisor.staging import pick_readers


@given(st.integers(1, 60), st.integers(1, 6))
def test_every_chunk_gets_one_reader_and_shares_are_contiguous(num_chunks: int, readers: int) -> None:
    read = owners_of(num_chunks, range(readers)).tolist()
    assert read == sorted(read)
    counts = [read.count(reader) for reader in range(readers)]
    assert sum(counts) == num_chunks
    assert max(counts) - min(counts) <= 1
    assert set(owners_of(num_chunks, ())) == {NOBODY}


def test_readers_are_those_that_lack_something_and_at_most_as_many_as_the_site_says() -> None:
    complete = [False, True, None, False, False]
    assert pick_readers(complete, None) == (0, 3, 4)
    assert pick_readers(complete, 2) == (0, 3)
    assert pick_readers([True, True], 1) == ()


def test_the_rarest_is_asked_for_first_and_nothing_twice() -> None:
    swarm = Swarm(bytearray(3), seed=1)
    for peer in (1, 2):
        swarm.join(peer)
    swarm.offer(1, [0, 1])
    swarm.offer(2, [0])
    assert swarm.pick(1) == 1
    swarm.ask(1, 1, now=0.0)
    assert swarm.pick(1) == 0
    swarm.ask(2, 0, now=1.0)
    assert swarm.pick(1) is None
    assert swarm.pick_late(1, before=0.5) is None
    assert swarm.pick_late(1, before=2.0) == 0
    assert swarm.unclaimed(stuck_before=-1.0) == [2]
    assert swarm.unclaimed(stuck_before=0.5) == [1, 2]
    swarm.leave(1)
    assert swarm.unclaimed(stuck_before=-1.0) == [1, 2]
    assert swarm.answered(2, 0)
    assert not swarm.answered(2, 0)
    assert swarm.got(0)
    assert not swarm.got(0)
    assert swarm.missing == 2


def test_what_came_from_one_is_not_asked_for_again_because_another_never_sent_it() -> None:
    swarm = Swarm(bytearray(1), seed=1)
    for peer in (1, 2):
        swarm.join(peer)
        swarm.offer(peer, [0])
    swarm.ask(1, 0, now=0.0)
    assert swarm.pick_late(2, before=1.0) == 0
    swarm.ask(2, 0, now=1.0)
    swarm.answered(2, 0)
    swarm.got(0)
    assert swarm.pick_late(2, before=2.0) is None


@given(st.integers(1, 40), st.randoms(use_true_random=True))
def test_counts_stay_right_whatever_happens(num_chunks: int, rng: random.Random) -> None:
    swarm = Swarm(bytearray(num_chunks), seed=2)
    for moment in range(60):
        peer = rng.randrange(4)
        if peer not in swarm.views:
            swarm.join(peer)
        what = rng.randrange(5)
        if what == 0:
            swarm.offer(peer, [rng.randrange(num_chunks)])
        elif what == 1 and (chunk := swarm.pick(peer)) is not None:
            assert swarm.views[peer].have[chunk]
            assert not swarm.have[chunk]
            swarm.ask(peer, chunk, float(moment))
        elif what == 2 and swarm.views[peer].asked:
            chunk = next(iter(swarm.views[peer].asked))
            swarm.answered(peer, chunk)
            swarm.got(chunk)
        elif what == 3 and swarm.views[peer].asked:
            swarm.withdraw(peer, next(iter(swarm.views[peer].asked)))
        elif what == 4 and rng.random() < 0.1:
            swarm.leave(peer)
        for chunk in range(num_chunks):
            assert swarm.holders[chunk] == sum(view.have[chunk] for view in swarm.views.values())
        assert swarm.missing == num_chunks - sum(swarm.have)


class Nobody:
    """Hears, has nothing and wants nothing."""

    def peer_has(self, peer: Connection, content: bytes) -> None:
        parse_have(content, 10)

    def peer_wants(self, peer: Connection, chunk: int) -> Piece | None:
        return None

    def peer_misses(self, peer: Connection, chunk: int) -> None:
        raise PeerError("not asked")

    def buffer_for(self, peer: Connection, chunk: int) -> memoryview:
        raise PeerError("not asked")

    def peer_sent(self, peer: Connection, chunk: int, buffer: memoryview) -> None:
        raise AssertionError


def hear(content: bytes) -> None:
    """Feed a connection until nothing is left. Raises PeerError for what no node would say."""

    async def talk() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(content)
            theirs.shutdown(socket.SHUT_WR)
            with contextlib.suppress(HungUp):
                await Connection(ours, Nobody()).run_receiver()

    asyncio.run(talk())


@pytest.mark.parametrize(
    "content",
    [frame(9), frame(1, 0), frame(1, 1 << 31), have_frames([10]), frame(3, 5), frame(4, 5), b"".join(frame(2) for _ in range(100))],
)
def test_what_no_node_would_say_ends_the_connection(content: bytes) -> None:
    with pytest.raises(PeerError):
        hear(content)


def test_a_chunk_that_is_not_here_is_answered() -> None:
    async def talk() -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            connection = Connection(ours, Nobody())
            connection.talks = [asyncio.create_task(half) for half in (connection.run_receiver(), connection.run_sender())]
            theirs.sendall(frame(2, 7))
            answer = await asyncio.get_running_loop().sock_recv(theirs, 100)
            connection.close()
            return answer

    assert asyncio.run(talk()) == frame(4, 7)
