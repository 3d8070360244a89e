"""A copy made together with others, up to its edges: the jobs of its threads and the words of the others are the test's."""

import errno
import gc
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from base.errors import StagingError
from data_prep.cache.layout import open_cache, part_of
from data_prep.limits import PEER_HANG_S as HANG_S
from data_prep.staging import stage
from data_prep.staging.chunk_journal import ChunkTable
from data_prep.staging.copy import CopyOptions, Rate, open_dataset
from data_prep.staging.exchange import Connection, Exchange, Others, PeerError, PeerGroup
from data_prep.staging.gather import Gather, Quota
from data_prep.staging.stage import GroupStaging, Part
from tests.data_prep.reader.small import random_dataset
from tests.data_prep.staging.test_stage import QUICK, Stopped, stop_after
from tests.few_files import few_files

CHUNK = 4096


@contextmanager
def peer_group(address: str = "127.0.0.1") -> Iterator[PeerGroup]:
    orders, writer = os.pipe()
    try:
        yield PeerGroup(index=0, nodes=3, address=address, token=bytes(32), orders=orders, say=lambda _value: None)
    finally:
        os.close(orders)
        os.close(writer)


class ByHand(Gather):
    """A copy whose jobs wait until the test does them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.jobs: list[partial[Coroutine[Any, Any, None]]] = []
        self._on_bytes = lambda _num_bytes: None

    def _start(self, job: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        self.jobs.append(partial(job, *arguments))

    def do_jobs(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            self._exchange._loop.run_until_complete(job())


class Rig:
    """One node's copy, and its exchange."""

    def __init__(self, root: Path, us: PeerGroup) -> None:
        self.source = open_dataset(random_dataset(root / "storage", [3 * CHUNK], chunk_bytes=CHUNK), 0)
        self.part = Part(open_cache(root / "cache"), self.source)
        self.part.allocate()
        table = ChunkTable(self.source.file_set.files)
        self.exchange = Exchange(
            us, self.source.file_set.digest, table, bytearray(table.num_chunks), lambda _shard: os.open(os.devnull, os.O_RDONLY)
        )
        self.gather = ByHand(self.source, self.part.path, self.part.journal, self.exchange, CopyOptions(direct=False))

    def chunk_in(self, root: Path, chunk: int) -> bytes:
        """The bytes that the chunk has in this directory."""
        (shard,) = self.source.file_set.files
        return (root / shard.path).read_bytes()[chunk * CHUNK : (chunk + 1) * CHUNK]

    def sends(self, peer: int, chunk: int, content: bytes | None = None) -> None:
        """A node sends the chunk."""
        buffer = self.gather.buffer(chunk)
        buffer[:] = content or self.chunk_in(self.source.root, chunk)
        self.gather.took(peer, chunk, buffer)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Rig]:
    with peer_group() as us:
        rig = Rig(tmp_path, us)
        yield rig
        rig.gather._close()
        rig.exchange.close()
        rig.part.close()


@pytest.fixture
def rig(alone: Rig) -> Rig:
    """Two others have the first chunk."""
    for peer in (1, 2):
        alone.exchange.swarm.join(peer)
        alone.exchange.swarm.offer(peer, [0])
    return alone


def test_what_has_come_and_waits_for_our_disk_is_asked_of_nobody(rig: Rig) -> None:
    swarm = rig.exchange.swarm
    swarm.ask(1, 0, now=0.0)
    rig.sends(1, 0)
    assert not swarm.views[1].asked, "who has sent it is not late"
    assert swarm.is_coming(0)
    assert swarm.pick(2) is None
    assert swarm.pick_late(2, before=1.0) is None
    assert swarm.unclaimed(stuck_before=1.0) == [1, 2]
    assert rig.chunk_in(rig.part.path, 0) == bytes(CHUNK), "not before its job"
    rig.gather.do_jobs()
    assert rig.chunk_in(rig.part.path, 0) == rig.chunk_in(rig.source.root, 0), "what another node sent is on our disk"
    assert swarm.have[0]
    assert not swarm.writing
    assert rig.gather.peer_bytes == CHUNK


def test_what_two_have_sent_is_written_once(rig: Rig) -> None:
    swarm = rig.exchange.swarm
    for peer in (1, 2):
        swarm.ask(peer, 0, now=0.0)
    for peer in (1, 2):
        rig.sends(peer, 0)
    assert len(rig.gather.jobs) == 1
    rig.gather.do_jobs()
    assert swarm.have[0]
    assert not any(view.asked for view in swarm.views.values())
    assert rig.gather.peer_bytes == CHUNK
    assert len(rig.gather._spare) == 2


def test_wrong_bytes_cost_the_sender_its_place_and_are_asked_of_another(rig: Rig) -> None:
    swarm = rig.exchange.swarm
    swarm.ask(1, 0, now=0.0)
    rig.sends(1, 0, b"\1" * CHUNK)
    rig.gather.do_jobs()
    assert "wrong bytes" in rig.exchange.lost[1]
    assert rig.chunk_in(rig.part.path, 0) == bytes(CHUNK), "and are not written"
    assert not swarm.have[0]
    assert swarm.pick(2) == 0


@pytest.mark.parametrize(("longest_s", "lost_after_s"), [(0.0, 16 * HANG_S), (HANG_S, 16 * HANG_S), (3 * HANG_S, 24 * HANG_S)])
def test_who_only_trickles_is_given_up_in_the_end(alone: Rig, longest_s: float, lost_after_s: float) -> None:
    exchange = alone.exchange
    exchange.longest_s = longest_s
    ours, theirs = socket.socketpair()
    with theirs:
        peer = Connection(ours, exchange)
        peer.index = 1
        exchange.peer_connected(peer)
        exchange.swarm.offer(1, [0])
        exchange.ask(1, 0)
        begun, second = time.monotonic(), 0
        while 1 not in exchange.lost and second < 1000:
            second += 1
            peer.heard = begun + second
            exchange._beat(begun + second)
    assert lost_after_s - 1 <= second <= lost_after_s + 2
    assert "has not come whole" in exchange.lost[1]
    assert not exchange.swarm.is_coming(0)


def test_what_was_not_asked_for_is_not_taken_and_what_is_not_here_is_not_sent(alone: Rig) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        peer = Connection(ours, alone.exchange)
        peer.index = 1
        alone.exchange.peer_connected(peer)
        alone.exchange.taker = alone.gather
        for heard in (alone.exchange.buffer_for, alone.exchange.peer_misses):
            with pytest.raises(PeerError, match="not asked for"):
                heard(peer, 0)
        assert [alone.exchange.peer_wants(peer, chunk) for chunk in (0, 3, 2**32 - 1)] == [None] * 3


def test_who_leaves_its_group_with_a_damaged_copy_reads_storage_at_its_share_of_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = random_dataset(tmp_path / "storage", [3 * CHUNK], chunk_bytes=CHUNK)
    copied = stage(root, tmp_path / "cache", options=QUICK).root / "shard-00000.lmdb" / "data.mdb"
    copied.chmod(0o600)
    copied.write_bytes(bytes(3 * CHUNK))
    rates: list[float | None] = []
    set_rate = Rate.set
    monkeypatch.setattr(Rate, "set", lambda rate, bytes_per_s: (rates.append(bytes_per_s), set_rate(rate, bytes_per_s)))
    with peer_group() as us, GroupStaging(us) as group:
        options = replace(QUICK, group_staging=group, copy=CopyOptions(bytes_per_s=3e9))
        assert stage(root, tmp_path / "cache", options=options).storage_bytes == 3 * CHUNK
    assert set(rates) == {1e9}


def test_an_address_that_is_not_ours_costs_no_copy(tmp_path: Path) -> None:
    root = random_dataset(tmp_path / "storage", [20 * CHUNK], chunk_bytes=CHUNK)
    with pytest.raises(Stopped):
        stage(root, tmp_path / "cache", progress=stop_after(10 * CHUNK), options=QUICK)
    part = part_of(open_cache(tmp_path / "cache"), root.name)
    assert part.is_dir()
    with (
        peer_group("192.0.2.1") as us,
        GroupStaging(us) as group_staging,
        pytest.raises(StagingError, match=r"192\.0\.2\.1.*: Cannot assign"),
    ):
        stage(root, tmp_path / "cache", options=replace(QUICK, group_staging=group_staging))
    assert part.is_dir()
    assert stage(root, tmp_path / "cache", options=QUICK).resumed_bytes > 0


def test_without_descriptors_a_node_is_not_gone_to(alone: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("data_prep.staging.exchange.socket.socket", none_left)
    alone.exchange._peers_listener.expect(1, ("127.0.0.1", 9))
    alone.exchange.turn(10)
    monkeypatch.undo()
    assert "Too many open files" in alone.exchange.lost[1]


def test_who_knocks_while_no_descriptor_is_left_waits_for_the_next_beat(alone: Rig) -> None:
    exchange, peers = alone.exchange, alone.exchange._peers_listener
    with socket.create_connection(("127.0.0.1", peers.port)):
        exchange._next_beat = time.monotonic() + 60
        with few_files(3):
            exchange.turn(0)
        for _ in range(4):
            exchange.turn(0)
        assert len(peers._pending) == 0
        exchange._beat(time.monotonic())
        exchange.turn(0)
        assert len(peers._pending) == 1


@pytest.mark.parametrize(
    ("has_it", "asked_s_ago", "read"),
    [(False, None, 1), (True, None, 0), (True, 1.0, 0), (True, 100.0, 1)],
)
def test_what_was_taken_over_is_not_read_once_somebody_brings_it(alone: Rig, has_it: bool, asked_s_ago: float | None, read: int) -> None:
    """The share of a node that is not there; then a third one comes, maybe with the second chunk."""
    exchange, swarm = alone.exchange, alone.exchange.swarm
    exchange.others = Others(peers=(None, None, None), readers=(1,), most_readers=None, late=False)
    quota = Quota(exchange)
    assert quota.next(10.0) == 2
    swarm.join(2)
    swarm.offer(2, [1] if has_it else [])
    if asked_s_ago is not None:
        swarm.ask(2, 1, time.monotonic() - asked_s_ago)
    assert quota.next(10.0) == read


def test_what_storage_does_not_give_is_asked_of_another_in_the_end(rig: Rig) -> None:
    swarm = rig.exchange.swarm
    swarm.reading[0] = 5.0
    assert swarm.pick(1) is None
    assert swarm.pick_late(1, before=5.0) is None
    assert swarm.pick_late(1, before=5.1) == 0
    swarm.ask(1, 0, now=6.0)
    assert swarm.pick_late(2, before=5.9) is None, "one is enough until that one is late too"
    rig.sends(1, 0)
    rig.gather.do_jobs()
    assert swarm.have[0]
    assert swarm.num_left == 1


def test_a_late_read_that_finds_the_copy_published_is_no_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    write = rig.gather._write

    def published(number: int, content: memoryview) -> None:
        rig.exchange.swarm.got(number)
        rig.part.path.rename(rig.part.path.with_name("published"))
        write(number, content)

    monkeypatch.setattr(rig.gather, "_write", published)
    rig.gather._read(0)
    with pytest.raises(FileNotFoundError):
        write(1, memoryview(bytes(CHUNK)))


def test_jobs_that_have_not_begun_when_the_exchange_closes_leave_nothing(rig: Rig) -> None:
    Gather._start(rig.gather, rig.gather._rechecked, [0])
    rig.exchange.close()
    gc.collect()


def test_what_the_disk_lost_is_asked_for_again(rig: Rig) -> None:
    swarm = rig.exchange.swarm
    swarm.ask(1, 0, now=0.0)
    rig.sends(1, 0)
    rig.gather.do_jobs()
    missing = swarm.missing
    assert swarm.pick(2) is None
    shard = rig.part.path / "shard-00000.lmdb" / "data.mdb"
    shard.write_bytes(bytes(shard.stat().st_size))
    sync = rig.gather._synced
    rig.exchange._loop.run_until_complete(sync([0]))
    assert (swarm.have[0], swarm.missing) == (0, missing + 1)
    assert swarm.pick(2) == 0
    for _ in range(2):
        swarm.got(0)
        rig.exchange._loop.run_until_complete(sync([0]))
    with pytest.raises(StagingError, match="does not keep what it is given: chunk 0 of shard-00000.lmdb .* 4 times"):
        rig.exchange._loop.run_until_complete(sync([0]))


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[Rig]:
    """A copy whose journal lists the first two chunks of three, the second of which the disk has lost."""
    with peer_group() as us:
        rig = Rig(tmp_path, us)
        (shard,) = rig.source.file_set.files
        with (rig.part.path / shard.path).open("r+b") as file:
            file.write((rig.source.root / shard.path).read_bytes()[:CHUNK])
        rig.part.journal.add([0, 1])
        rig.part.journal.done = {0, 1}
        rig.exchange.close()
        table = ChunkTable(rig.source.file_set.files)
        rig.exchange = Exchange(PeerGroup(), rig.source.file_set.digest, table, table.marks(rig.part.journal.done))
        rig.gather = ByHand(rig.source, rig.part.path, rig.part.journal, rig.exchange, CopyOptions(direct=False))
        yield rig
        rig.gather._close()
        rig.exchange.close()
        rig.part.close()


def run_one_turn(rig: Rig) -> None:
    def stop() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        rig.gather.run(lambda _bytes: None, stop)


def test_what_an_interrupted_copy_left_is_read_back_while_the_rest_is_read(interrupted: Rig) -> None:
    run_one_turn(interrupted)
    assert len(interrupted.gather.jobs) == 2
    assert list(interrupted.exchange.swarm.reading) == [2]


def test_a_chunk_that_the_disk_lost_is_copied_again(interrupted: Rig) -> None:
    gather, swarm = interrupted.gather, interrupted.exchange.swarm
    seen: list[int] = []
    gather._on_bytes = seen.append
    gather._recheck_more()
    gather.do_jobs()
    assert seen == [CHUNK]
    assert gather.resumed_bytes == CHUNK
    assert list(swarm.have) == [1, 0, 0]
