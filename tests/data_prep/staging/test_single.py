"""A single file beside which the hashes of its chunks lie is moved as a dataset is: read once, passed on, checked, resumed."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from base.chunks import SCHEMA, chunks_path
from base.errors import DatasetError, DigestMismatch, NotEnoughSpace, StagingError
from data_prep.cache.entries import ls, remove_unused
from data_prep.cache.lock import release, this_process
from data_prep.hashing import hash_file
from data_prep.staging import StagedFiles, StageOptions, stage
from tests.data_prep.reader.small import random_dataset
from tests.data_prep.staging.crew import crew
from tests.data_prep.staging.test_stage import QUICK

CHUNK = 65536
SINGLE = replace(QUICK, single=True)
NAME = "0123456789ab.tar.zst"


def described(path: Path) -> dict[str, Any]:
    found = hash_file(path, CHUNK)
    return {"schema": SCHEMA, "name": path.name, "bytes": found.bytes, "chunk_bytes": CHUNK, "chunks": found.chunks}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "images" / NAME
    path.parent.mkdir()
    path.write_bytes(random.Random(7).randbytes(40 * CHUNK + 5))
    chunks_path(path).write_text(json.dumps(described(path)))
    return path


def staged(file: Path, cache: Path, options: StageOptions = SINGLE) -> StagedFiles:
    return stage(file, cache, options=options)


def test_it_is_copied_once_listed_and_found_again(tmp_path: Path, file: Path) -> None:
    first = stage(file, tmp_path / "cache", options=SINGLE, holder={**this_process(), "run_id": "run"})
    assert (first.root / NAME).read_bytes() == file.read_bytes()
    assert first.storage_bytes == file.stat().st_size
    assert first.root.name.startswith(f"{NAME}-")
    (row,) = ls(tmp_path / "cache")
    assert (row.name, row.kind, row.bytes, row.damaged, len(row.leases)) == (first.root.name, "file", file.stat().st_size, None, 1)
    assert staged(file, tmp_path / "cache").hit


@pytest.mark.processes
def test_several_nodes_read_it_once_from_storage(tmp_path: Path, file: Path) -> None:
    caches = [tmp_path / f"cache{index}" for index in range(4)]
    with crew(file, caches, "--single") as stagers:
        stagers.meet()
        results = stagers.finish()
    size = file.stat().st_size
    assert sum(result["storage_bytes"] for result in results) == size
    assert sum(result["peer_bytes"] for result in results) == 3 * size
    assert {(Path(result["root"]) / NAME).read_bytes() == file.read_bytes() for result in results} == {True}


def test_there_is_no_room_for_it_beside_what_is_used_and_what_is_not_used_goes(tmp_path: Path, file: Path) -> None:
    size, cache = file.stat().st_size, tmp_path / "cache"
    used = random_dataset(tmp_path / "storage", [size], name="used")
    root = stage(used, cache, holder={**this_process(), "run_id": "run"}, options=QUICK)
    with pytest.raises(NotEnoughSpace, match=rf"{NAME}-\w+ does not fit into the cache"):
        stage(file, cache, max_bytes=int(1.5 * size), options=SINGLE)
    assert root.lease is not None
    release(cache, root.lease)
    stage(file, cache, max_bytes=int(1.5 * size), options=SINGLE)
    assert [row.kind for row in ls(cache)] == ["file"]


def test_of_two_runs_that_use_it_the_last_one_removes_it(tmp_path: Path, file: Path) -> None:
    cache, holders = tmp_path / "cache", [{**this_process(), "run_id": run} for run in ("one", "other")]
    names = {stage(file, cache, holder=holder, options=SINGLE).root.name for holder in holders}
    (name,) = names
    remove_unused(cache, [name], holders[0])
    assert [row.name for row in ls(cache)] == [name]
    remove_unused(cache, [name], holders[1])
    assert ls(cache) == []


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_file_is_named_and_what_to_do(tmp_path: Path, file: Path, damage: str) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] if damage == "cut" else b"\0" + content[1:])
    with pytest.raises(DigestMismatch, match=rf"{NAME}.*was cut or changed on storage; remove it and {NAME}.chunks.json"):
        staged(file, tmp_path / "cache")
    assert not [row for row in ls(tmp_path / "cache") if row.kind == "file"]
    assert list((tmp_path / "cache" / "datasets").rglob("*")) == []


def test_a_forged_list_of_the_right_size_leaves_nothing_in_the_cache(tmp_path: Path, file: Path) -> None:
    """The file itself is whole: only its last chunk is not the one that the list promises, so that most of it was copied."""
    listed = described(file)
    chunks_path(file).write_text(json.dumps({**listed, "chunks": [*listed["chunks"][:-1], "0" * 32]}))
    with pytest.raises(DigestMismatch, match=NAME):
        staged(file, tmp_path / "cache", SINGLE)
    assert list((tmp_path / "cache" / "datasets").rglob("*")) == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": "../other"}, DatasetError),
        ({"name": "manifest.json"}, DatasetError),
        ({"name": "other.tar.zst"}, DigestMismatch),
        ({"chunks": []}, DatasetError),
        ({"chunks": ["x"] * 41}, DatasetError),
        ({"bytes": 0}, DatasetError),
        ({"schema": "slipway.chunks/2"}, DatasetError),
    ],
)
def test_a_list_of_chunks_that_is_none_is_refused(tmp_path: Path, file: Path, change: dict[str, Any], error: type[Exception]) -> None:
    chunks_path(file).write_text(json.dumps(described(file) | change))
    with pytest.raises(error, match="chunks.json"):
        staged(file, tmp_path / "cache")


def test_without_its_list_it_is_not_there(tmp_path: Path, file: Path) -> None:
    chunks_path(file).unlink()
    with pytest.raises(StagingError, match=r"chunks.json does not exist .* was it made and published\?"):
        staged(file, tmp_path / "cache")
