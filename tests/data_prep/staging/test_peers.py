"""Nodes that stage together, each a process with a cache of its own, on the loopback interface."""

import os
import random
import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from base.handshake import ANSWER_BYTES, Handshake
from data_prep.cache.layout import open_cache, part_of
from data_prep.manifest import digest_of, parse_manifest
from data_prep.staging import StageOptions, stage
from data_prep.staging.chunk_journal import ChunkTable
from data_prep.staging.copy import CopyOptions
from data_prep.staging.exchange import BEAT, CHUNK, HAVE, HEAD, WANT, frame, have_frames
from tests.data_prep.reader.small import random_dataset
from tests.data_prep.staging.crew import TOKEN, crew
from tests.data_prep.staging.test_stage import Stopped, stop_after
from tests.data_prep.tree.corpus import contents

pytestmark = pytest.mark.slow

SIZES = [3_000_000, 1_200_001, 1, 800_000]
TOTAL = sum(SIZES)
PATIENT = ("--hang-s", "60", "--late-s", "60")
"""A machine that is busy with other tests is no reason to give anybody up."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return random_dataset(tmp_path / "storage", SIZES, chunk_bytes=65536)


@pytest.fixture
def caches(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"cache{index}" for index in range(4)]


def assert_whole(source: Path, caches: list[Path]) -> None:
    for cache in caches:
        assert contents(cache / "datasets" / source.name) == contents(source)
        assert [path.name for path in (cache / "datasets").iterdir()] == [source.name]


@pytest.mark.parametrize("readers", [None, 1, 2])
@pytest.mark.parametrize("nodes", [2, 4])
def test_storage_is_read_once(source: Path, caches: list[Path], nodes: int, readers: int | None) -> None:
    with crew(source, caches[:nodes], *PATIENT) as stagers:
        stagers.meet(readers)
        results = stagers.finish()
    assert_whole(source, caches[:nodes])
    assert sum(result["storage_bytes"] for result in results) == TOTAL
    assert sum(result["peer_bytes"] for result in results) == (nodes - 1) * TOTAL
    assert all(result["copied_bytes"] == TOTAL and not result["lost_peers"] for result in results)
    reading = [index for index, result in enumerate(results) if result["storage_bytes"]]
    assert reading == list(range(readers or nodes))
    if readers is None:
        assert max(result["storage_bytes"] for result in results) < TOTAL / nodes + 2 * 65536


def test_storage_is_read_once_as_the_files_themselves_say(tmp_path: Path, caches: list[Path]) -> None:
    """Counted independently: what all stagers opened on storage lies on a disk of its own, whose reads the kernel counts."""
    from tests.data_prep.staging.disks import ext4

    with ext4(tmp_path, 96 << 20) as disk:
        source = random_dataset(disk.place, [30 << 20], chunk_bytes=1 << 20)
        os.sync()
        disk.unmount()
        disk.mount()
        device = disk.place.stat().st_dev
        counter = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        before = int(counter.read_text().split()[2]) * 512
        with crew(source, caches, *PATIENT) as stagers:
            stagers.meet()
            stagers.finish()
        read = int(counter.read_text().split()[2]) * 512 - before
    assert 30 << 20 <= read < 1.2 * (30 << 20)


def test_a_node_that_has_it_serves_and_storage_is_not_read(source: Path, caches: list[Path]) -> None:
    stage(source, caches[2])
    with crew(source, caches, *PATIENT) as stagers:
        stagers.meet()
        results = stagers.finish()
    assert_whole(source, caches)
    assert [result["hit"] for result in results] == [False, False, True, False]
    assert [result["storage_bytes"] for result in results] == [0, 0, 0, 0]
    assert [result["peer_bytes"] for result in results] == [TOTAL, TOTAL, 0, TOTAL]


def test_what_an_interrupted_copy_left_is_passed_on_and_not_read_again(source: Path, caches: list[Path]) -> None:
    options = StageOptions(copy=CopyOptions(sync_bytes=100_000, threads=1))
    for cache, part in ((caches[0], 0.3), (caches[1], 0.7)):
        with pytest.raises(Stopped):
            stage(source, cache, progress=stop_after(int(part * TOTAL)), options=options)
    with crew(source, caches[:3], *PATIENT, "--bytes-per-s", "3e6") as stagers:
        stagers.meet()
        results = stagers.finish()
    assert_whole(source, caches[:3])
    resumed = [result["resumed_bytes"] for result in results]
    assert resumed[1] > resumed[0] > 0
    read = sum(result["storage_bytes"] for result in results)
    assert TOTAL - resumed[1] <= read <= TOTAL - resumed[1] + 3 * 5 * 65536, "what was read before a node heard of the others' chunks"


def test_one_cache_for_two_nodes_is_staged_once(source: Path, caches: list[Path]) -> None:
    """Two runs on one node, or two nodes with one cache: the second waits for the first, says so, and has a hit."""
    with crew(source, [caches[0], caches[0]], *PATIENT) as stagers:
        stagers.until(lambda: all({"listening", "waiting"} & stager.said.keys() for stager in stagers.all))
        first = next(stager for stager in stagers.all if "listening" in stager.said)
        second = stagers.all[1 - first.index]
        met: list[Any] = [None, None]
        met[first.index] = [first.said["listening"][key] for key in ("address", "port", "have")]
        first.tell(peers={"peers": met, "readers": [first.index], "most_readers": None, "late": False})
        stagers.until(lambda: "listening" in second.said)
        results = stagers.finish()
    assert sorted(result["hit"] for result in results) == [False, True]
    assert sum(result["storage_bytes"] for result in results) == TOTAL
    assert_whole(source, [caches[0]])


def test_one_that_comes_late_gets_all_from_the_others(source: Path, caches: list[Path]) -> None:
    with crew(source, caches[:3], *PATIENT) as stagers:
        stagers.until(lambda: all("listening" in stager.said for stager in stagers.all))
        met = [[stager.said["listening"][key] for key in ("address", "port", "have")] for stager in stagers.all]
        for stager in stagers.all[:2]:
            stager.tell(peers={"peers": [*met[:2], None], "readers": [0, 1], "most_readers": None, "late": False})
        stagers.until(lambda: all("result" in stager.said for stager in stagers.all[:2]))
        stagers.all[2].tell(peers={"peers": met, "readers": [0, 1], "most_readers": None, "late": True})
        results = stagers.finish()
    assert results[2]["storage_bytes"] == 0
    assert_whole(source, caches[:3])


# -- others that fail


@pytest.mark.parametrize("readers", [None, 1])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_frozen_node_does_not_stop_the_others(source: Path, caches: list[Path], victim: int, readers: int | None) -> None:
    with crew(source, caches[:3], "--hang-s", "1.5", "--late-s", "0.5", "--bytes-per-s", "3e6") as stagers:
        stagers.meet(readers)
        stagers.until(lambda: stagers.all[2].said.get("progress", [0])[0] > 0)
        stagers.signal(victim, signal.SIGSTOP)
        results = stagers.finish(victim)
        stagers.signal(victim, signal.SIGCONT)
        stagers.all[victim].tell(staged_all=True)
        stagers.until(lambda: stagers.all[victim].gone)
    assert_whole(source, [cache for index, cache in enumerate(caches[:3]) if index != victim])
    if readers is None or victim == 0:
        assert any(str(victim) in result["lost_peers"] for result in results)
    assert sum(result["storage_bytes"] for result in results) <= 1.4 * TOTAL


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to make a read hang")
@pytest.mark.parametrize("victim", [0, 2])
def test_a_node_whose_storage_hangs_gets_all_from_the_others(source: Path, caches: list[Path], victim: int) -> None:
    """Its reads of one shard answer after ten minutes: what the others have read in its place comes from them, and it ends."""
    hangs = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(source / "shard-00000.lmdb" / "data.mdb")]
    hangs += ["-e", "trace=preadv,preadv2", "-e", "inject=preadv,preadv2:delay_enter=600000000"]
    with crew(source, caches[:3], "--late-s", "0.5", wrap={victim: hangs}) as stagers:
        stagers.meet(appointed=[victim, *(index for index in range(3) if index != victim)])
        stagers.until(lambda: all("result" in stager.said for stager in stagers.all))
        for stager in stagers.all:
            stager.tell(staged_all=True)
        results = [stager.result for stager in stagers.all]
    assert_whole(source, caches[:3])
    assert results[victim]["storage_bytes"] == 0
    assert sum(result["storage_bytes"] for result in results) <= 1.2 * TOTAL


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to make a read hang")
@pytest.mark.parametrize("holder", ["has all", "has part"])
def test_a_holder_whose_disk_is_slow_with_its_own_work_serves_meanwhile(source: Path, caches: list[Path], holder: str) -> None:
    """It hashes what it has for ten minutes; what it sends is read in another way (sendfile), and hashed by who gets it."""
    cache = open_cache(caches[2])
    if holder == "has all":
        mine = stage(source, caches[2]).root
    else:
        mine = part_of(cache, source.name)
        with pytest.raises(Stopped):
            stage(source, caches[2], progress=stop_after(4_000_000), options=StageOptions(copy=CopyOptions(sync_bytes=100_000, threads=1)))
    slow = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(mine / "shard-00000.lmdb" / "data.mdb")]
    slow += ["-e", "trace=preadv,preadv2", "-e", "inject=preadv,preadv2:delay_enter=600000000"]
    with crew(source, caches[:3], "--late-s", "0.5", "--bytes-per-s", "2e6", wrap={2: slow}) as stagers:
        stagers.meet(appointed=[0, 1])
        results = stagers.finish(2)
        assert "result" not in stagers.all[2].said
    assert_whole(source, caches[:2])
    assert sum(result["storage_bytes"] for result in results) <= (0 if holder == "has all" else 0.5 * TOTAL)


def test_a_node_that_cannot_be_reached_is_done_without(source: Path, caches: list[Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with crew(source, caches[:3], *PATIENT) as stagers:
        stagers.meet(replace={2: ("127.0.0.1", port, "some")}, appointed=[0, 1, 2])
        results = stagers.finish(2)
    assert all("2" in result["lost_peers"] for result in results)
    assert sum(result["storage_bytes"] for result in results) <= 2 * TOTAL
    assert_whole(source, caches[:2])


def kills(seed: int) -> Iterator[tuple[int, int, float, int | None]]:
    rng = random.Random(seed)
    while True:
        yield rng.randrange(4), rng.randrange(2, 5), rng.random(), rng.choice([None, None, 1, 2])


@pytest.mark.parametrize("seed", range(int(os.environ.get("SLIPWAY_PEER_KILLS", "6"))))
def test_nodes_killed_at_any_moment_do_not_stop_the_others(source: Path, caches: list[Path], seed: int) -> None:
    victim, nodes, moment, readers = next(kills(seed))
    victim %= nodes
    with crew(source, caches[:nodes], "--late-s", "0.5", "--bytes-per-s", "12e6") as stagers:
        stagers.meet(readers)
        watched = stagers.all[victim]
        stagers.until(lambda: watched.said.get("progress", [0])[0] >= moment * 0.9 * TOTAL or "result" in watched.said)
        stagers.signal(victim, signal.SIGKILL)
        results = stagers.finish(victim)
        assert_whole(source, [cache for index, cache in enumerate(caches[:nodes]) if index != victim])
    assert all(result["copied_bytes"] == TOTAL for result in results)
    assert sum(result["storage_bytes"] for result in results) <= 1.3 * TOTAL
    again = stage(source, caches[victim])
    assert_whole(source, [again.root.parent.parent])


class Liar:
    """A node that proves who it is, says that it has all, or `chunks`, and then does not do what a node does."""

    def __init__(self, source: Path) -> None:
        self.manifest = parse_manifest((source / "manifest.json").read_bytes())
        self.table = ChunkTable(self.manifest.shards)
        self.digest = digest_of((source / "manifest.json").read_bytes())
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def greet(self, me: int, chunks: Sequence[int] | None = None) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(30)
        handshake = Handshake(TOKEN, f"chunks {self.digest}", me)
        connection.sendall(handshake.greeting())
        _, _, welcome = handshake.check_answer(exactly(connection, ANSWER_BYTES))
        connection.sendall(welcome + have_frames(list(chunks or range(self.table.num_chunks))))
        return connection


def exactly(connection: socket.socket, num_bytes: int) -> bytes:
    content = b""
    while len(content) < num_bytes:
        data = connection.recv(num_bytes - len(content))
        if not data:
            raise ConnectionError
        content += data
    return content


def wanted(connection: socket.socket) -> int:
    """The next chunk that it is asked for."""
    while True:
        kind, number = HEAD.unpack(exactly(connection, HEAD.size))
        if kind == WANT:
            return int(number)
        if kind == HAVE:
            exactly(connection, 4 * number)


@pytest.mark.parametrize("lie", ["wrong bytes", "garbage", "half a chunk", "nothing"])
def test_a_lying_node_is_found_out_and_its_chunks_come_from_elsewhere(source: Path, caches: list[Path], lie: str) -> None:
    liar = Liar(source)
    with liar.listener, crew(source, caches[:3], "--hang-s", "1", "--late-s", "0.5") as stagers:
        stagers.meet(replace={2: ("127.0.0.1", liar.port, "all")}, appointed=[0, 1])
        connections = [liar.greet(2) for _ in range(2)]
        for connection in connections:
            with connection:
                chunk = wanted(connection)
                if lie == "wrong bytes":
                    connection.sendall(frame(CHUNK, chunk) + bytes(65536))
                    stagers.until(lambda: any(b"wrong bytes" in stager.stderr for stager in stagers.all[:2]))
                elif lie == "garbage":
                    connection.sendall(os.urandom(1000))
                elif lie == "half a chunk":
                    connection.sendall(frame(CHUNK, chunk) + bytes(1000))
                else:
                    stagers.until(lambda: "result" in stagers.all[0].said or b"given up" in stagers.all[0].stderr)
        results = stagers.finish(2)
    assert_whole(source, caches[:2])
    assert all("2" in result["lost_peers"] for result in results)


def test_a_node_that_is_turned_away_comes_again(source: Path, caches: list[Path]) -> None:
    """As by one to which too many strangers have come: before it was greeted, and after."""
    crowded = Liar(source)
    with crowded.listener, crew(source, caches[:2], "--hang-s", "60", "--late-s", "60") as stagers:
        stagers.meet(replace={1: ("127.0.0.1", crowded.port, "all")}, appointed=[])
        crowded.listener.accept()[0].close()
        connection, _ = crowded.listener.accept()
        connection.sendall(Handshake(TOKEN, f"chunks {crowded.digest}", 1).greeting())
        exactly(connection, ANSWER_BYTES)
        connection.close()
        with crowded.greet(1) as connection:
            assert wanted(connection) < crowded.table.num_chunks
            assert b"given up" not in stagers.all[0].stderr


@pytest.mark.parametrize("begun", [False, True])
def test_an_answer_that_comes_when_all_is_over_disturbs_nobody(source: Path, caches: list[Path], begun: bool) -> None:
    late = Liar(source)
    with late.listener, crew(source, caches[:2], "--hang-s", "60", "--late-s", "0.5", "--bytes-per-s", "3e6") as stagers:
        stagers.meet(replace={1: ("127.0.0.1", late.port, "some")}, appointed=[0])
        with late.greet(1, [late.table.num_chunks - 1]) as connection:
            chunk = wanted(connection)
            answer = frame(CHUNK, chunk) + bytes(late.table.span(chunk)[2])
            sent = 1000 if begun else 0
            connection.sendall(answer[:sent])
            stagers.until(lambda: "result" in stagers.all[0].said or stagers.all[0].gone)
            connection.sendall(answer[sent:] + frame(WANT, chunk))
            while (head := HEAD.unpack(exactly(connection, HEAD.size)))[0] != CHUNK:
                assert head[0] in (BEAT, HAVE, WANT), "it serves us still"
                exactly(connection, 4 * head[1] if head[0] == HAVE else 0)
            assert head[1] == chunk
        (result,) = stagers.finish(1)
    assert result["storage_bytes"] == TOTAL
    assert_whole(source, caches[:1])


def test_a_supervisor_that_goes_away_ends_all_and_the_copies_go_on_later(source: Path, caches: list[Path]) -> None:
    with crew(source, caches[:2], *PATIENT, "--bytes-per-s", "2e6") as stagers:
        stagers.meet()
        stagers.until(lambda: all(stager.said.get("progress", [0])[0] > 0 for stager in stagers.all))
        for stager in stagers.all:
            assert stager.process.stdin is not None
            stager.process.stdin.close()
        stagers.until(lambda: all(stager.gone for stager in stagers.all))
        assert [stager.process.returncode for stager in stagers.all] == [26, 26]
    for cache in caches[:2]:
        assert part_of(open_cache(cache), source.name).is_dir()
    with crew(source, caches[:2], *PATIENT) as stagers:
        stagers.meet()
        stagers.finish()
    assert_whole(source, caches[:2])
