"""One writer per run, whoever dies when."""

import errno
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from base import publish
from base.errors import LeaseError, RunHeld, StorageError
from cluster.holder import holder_of
from cluster.types import Holder
from tests.data_prep.staging.disks import tmpfs
from workflow.run.storage import prepare
from workflow.run.storage.lease import Lease, acquire, holds, is_held, new_lease, read_lease, release

ME = holder_of(os.getpid(), "local", "1", 0)


def wanted(attempt: int = 1) -> Callable[[Lease | None], Lease]:
    return lambda dead: new_lease(ME, dead.attempt + 1 if dead else attempt)


def take(run_dir: Path, alive: bool | None = True) -> tuple[Lease, Lease | None]:
    return acquire(run_dir, wanted(), lambda _holder: alive, lambda holder: f"process {holder.pid} on {holder.host}; kill it")


def _says(alive: bool | None, _holder: Holder) -> bool | None:
    return alive


def files(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.iterdir())


def test_a_free_run_is_taken_and_given_back(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "r"
    mine, dead = take(run_dir)
    assert dead is None
    assert read_lease(run_dir) == mine
    assert json.loads((run_dir / "lease.json").read_text())["job_id"] == "1"
    assert holds(run_dir, mine.token)
    assert release(run_dir, mine.token)
    assert files(run_dir) == []
    assert not holds(run_dir, mine.token)
    assert not release(run_dir, mine.token)


@pytest.mark.parametrize(
    ("alive", "words"), [(True, "is running already, attempt 1"), (None, r"cannot be seen from here.*remove .*lease\.json")]
)
def test_a_living_or_unknown_holder_is_refused_with_who_where_since_when_and_what_to_do(
    tmp_path: Path, alive: bool | None, words: str
) -> None:
    take(tmp_path)
    with pytest.raises(LeaseError, match=words) as caught:
        take(tmp_path, alive)
    assert f"process {os.getpid()} on {os.uname().nodename}; kill it" in str(caught.value)
    assert "since 20" in str(caught.value)
    assert caught.value.exit_code == 21
    assert isinstance(caught.value, RunHeld) == (alive is True), "only an end that can be seen can be waited for"


def test_a_run_is_held_until_its_holder_is_known_to_be_gone(tmp_path: Path) -> None:
    assert not is_held(tmp_path, lambda _holder: True)
    take(tmp_path)
    answers: list[bool | None] = [True, None, False]
    assert [is_held(tmp_path, partial(_says, alive)) for alive in answers] == [True, True, False]


def test_a_dead_holder_is_followed_and_fenced(tmp_path: Path) -> None:
    first, _ = take(tmp_path)
    second, dead = take(tmp_path, alive=False)
    assert dead == first
    assert second.attempt == 2
    assert not holds(tmp_path, first.token)
    assert not release(tmp_path, first.token), "the dead was not dead, and must not give back what is another's"
    third, dead = take(tmp_path, alive=False)
    assert dead == second
    assert holds(tmp_path, third.token)
    assert release(tmp_path, third.token)
    assert files(tmp_path) == []


def test_a_taker_that_dies_between_its_two_files_is_the_next_dead_holder(tmp_path: Path) -> None:
    first, _ = take(tmp_path)
    middle = new_lease(ME, 2)
    (tmp_path / f".lease-after-{first.token}").write_text(json.dumps(middle.to_json()))
    assert read_lease(tmp_path) == middle
    last, dead = take(tmp_path, alive=False)
    assert dead == middle
    assert last.attempt == 3
    assert holds(tmp_path, last.token)


def test_one_who_was_believed_dead_writes_his_file_again_and_still_does_not_hold_it(tmp_path: Path) -> None:
    first, _ = take(tmp_path)
    content = (tmp_path / "lease.json").read_text()
    second, _ = take(tmp_path, alive=False)
    (tmp_path / "lease.json").write_text(content)
    assert not holds(tmp_path, first.token)
    assert holds(tmp_path, second.token)


def test_a_mark_that_follows_nothing_any_more_is_withdrawn(tmp_path: Path) -> None:
    first, _ = take(tmp_path)

    def dies(_holder: Holder) -> bool:
        release(tmp_path, first.token)  # between our look and our mark the holder ends well
        return False

    mine, dead = acquire(tmp_path, wanted(), dies, lambda _holder: "")
    assert dead is None
    assert read_lease(tmp_path) == mine
    assert files(tmp_path) == ["lease.json"]


@pytest.mark.parametrize("content", [b"", b'{"token": "x"', b"[]", b'{"token": "x"}'])
def test_a_file_that_is_no_lease_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease.json").write_bytes(content)
    for ask in (take, partial(is_held, alive=partial(_says, True))):
        with pytest.raises(LeaseError, match=r"lease\.json is empty or torn.*remove it"):
            ask(tmp_path)
    (tmp_path / "lease.json").unlink()
    take(tmp_path)


def test_a_lease_has_its_content_when_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its writer is killed between the two."""

    def link(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(KeyboardInterrupt):
        take(tmp_path)
    assert files(tmp_path) == []


def test_what_a_killed_start_left_is_removed_when_the_run_is_given_back(tmp_path: Path) -> None:
    for name in ("lease.json", ".lease-after-abc"):
        publish.part_path(tmp_path / name).write_text("{}")
        os.utime(next(tmp_path.glob(f".{name}.part-*")), (1, 1))
    writing = publish.part_path(tmp_path / "lease.json")
    writing.write_text("{}")
    mine, _ = take(tmp_path)
    assert release(tmp_path, mine.token)
    assert files(tmp_path) == [writing.name]


def test_a_run_whose_dead_holder_s_remains_cannot_be_listed_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(tmp_path)
    (tmp_path / "attempts").mkdir()
    glob = Path.glob

    def failing(path: Path, pattern: str) -> Iterator[Path]:
        if path.name == "attempts" and "part" in pattern:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return glob(path, pattern)

    monkeypatch.setattr(Path, "glob", failing)
    monkeypatch.setattr(prepare, "holder_alive", partial(_says, False))
    with pytest.raises(OSError, match="Input/output error"):
        prepare.take_run(tmp_path, ME)
    assert read_lease(tmp_path) is None


@pytest.mark.slow
def test_full_storage_is_told_by_its_path_and_holds_nobody_up_once_there_is_room(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "storage", 64 << 10) as storage:
        (storage / "filler").write_bytes(bytes(64 << 10))
        with pytest.raises(StorageError, match=r"No space left on device: .*/r/lease\.json; free room or quota there"):
            take(storage / "r")
        assert files(storage / "r") == []
        (storage / "filler").unlink()
        mine, dead = take(storage / "r")
        assert dead is None
        assert holds(storage / "r", mine.token)


def _race(run_dir: str, start: Any, found: Any) -> None:
    start.wait()
    me = holder_of(os.getpid(), "local", str(os.getpid()), 0)
    try:
        lease, _ = acquire(
            Path(run_dir),
            lambda dead: new_lease(me, dead.attempt + 1 if dead else 1),
            lambda holder: holder.job_id != "1",
            lambda _holder: "",
        )
        found.put(lease.token)
    except LeaseError:
        found.put(None)


@pytest.mark.processes
@pytest.mark.parametrize("taken", [True, False])
def test_of_many_takers_of_a_dead_or_free_run_one_gets_it(tmp_path: Path, taken: bool) -> None:
    if taken:
        take(tmp_path)
    context = multiprocessing.get_context("fork")
    start, found = context.Event(), context.Queue()
    takers = [context.Process(target=_race, args=(str(tmp_path), start, found)) for _ in range(6)]
    for taker in takers:
        taker.start()
    start.set()
    tokens = [token for _ in takers if (token := found.get(timeout=30)) is not None]
    for taker in takers:
        taker.join()
    assert len(tokens) == 1
    assert holds(tmp_path, tokens[0])


def test_the_holder_of_a_lease_is_told_by_its_scheduler() -> None:
    from cluster.schedulers import describe_holder, holder_alive

    assert holder_alive(ME) is True
    foreign = replace(ME, scheduler="moab")
    assert holder_alive(foreign) is None
    assert "moab" in describe_holder(foreign)
