"""The manifest: what is written is read, what is wrong is refused, what has changed is found."""

import base64
import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from base.errors import DatasetError, DigestMismatch
from data_prep.file_set import verify_dataset
from data_prep.manifest import FILE_NAME, digest_of, manifest_digest, parse_manifest, read_manifest, to_bytes
from tests.data_prep.build.corpus import build

SPEC = {"source": "synthetic", "samples": 24, "classes": 3, "size": 16, "shards": 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("whole"), SPEC)[0]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return build(tmp_path, SPEC)[0]


def test_what_is_written_is_read(whole: Path) -> None:
    content = (whole / FILE_NAME).read_bytes()
    manifest = read_manifest(whole)
    assert to_bytes(manifest) == content
    assert digest_of(content) == manifest_digest(whole)
    assert whole.name == f"set-{manifest_digest(whole)[:12]}"
    plain = json.loads(content)
    assert plain["schema"] == "slipway.dataset/1"
    assert (plain["format"], plain["value"], plain["key"]) == ("lmdb-0.9", "caffe-datum", "%08d")
    assert plain["shards"][0]["chunk_bytes"] == 4194304
    assert plain["source"]["kind"] == "synthetic"
    assert str(whole.parent) not in content.decode()


def test_published_files_are_read_only(whole: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in whole.rglob("*") if path.is_file()} == {0o444}


def image_of(manifest: dict[str, Any], value: float) -> str:
    height, width = manifest["size"]
    return base64.b64encode(struct.pack("<f", value) * (height * width * manifest["channels"])).decode()


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "schema": lambda m: m.update(schema="slipway.dataset/9"),
    "path in a name": lambda m: m["shards"][0].update(name="../../etc/shard-00000.lmdb"),
    "twice the same": lambda m: m["shards"][1].update(name=m["shards"][0]["name"]),
    "bytes": lambda m: m["shards"][0].update(bytes=10**9),
    "negative": lambda m: m.update(samples=-1),
    "float": lambda m: m.update(samples=24.0),
    "truth": lambda m: m.update(channels=True),
    "missing": lambda m: m.pop("classes"),
    "null": lambda m: m.update(shards=None),
    "hash": lambda m: m["shards"][0].update(blake3="x" * 64),
    "chunks": lambda m: m["shards"][0]["chunks"].append("0" * 32),
    "counts": lambda m: m["splits"]["train"]["class_counts"].__setitem__(0, 99),
    "a split with more than its shards": lambda m: m["splits"]["train"].update(
        samples=m["splits"]["train"]["samples"] + 1,
        class_counts=[m["splits"]["train"]["class_counts"][0] + 1, *m["splits"]["train"]["class_counts"][1:]],
    ),
    "no shard of mine": lambda m: m["splits"]["train"].update(shards=[0, 99]),
    "shard of two": lambda m: m["splits"]["test"].update(shards=[0]),
    "mean": lambda m: m.update(mean=[1.0]),
    "mean image": lambda m: m.update(mean_image="AAAA"),
    "mean image that is none": lambda m: m.update(mean_image="?"),
    "mean image without a number": lambda m: m.update(mean_image=image_of(m, math.nan)),
    "mean image beyond the pixels": lambda m: m.update(mean_image=image_of(m, 256)),
    "size": lambda m: m.update(size=[0, 3]),
    "sizeless": lambda m: m.update(size=None),
    "encoding": lambda m: m.update(encoding="zip"),
    "text": lambda m: m.update(mean="abc"),
    "check": lambda m: m.update(check="nothing"),
    "more measured than there are": lambda m: m.update(statistics_samples=m["splits"]["train"]["samples"] + 1),
    "nothing measured": lambda m: m.update(statistics_samples=0),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_manifest_that_contradicts_itself_is_refused(whole: Path, name: str) -> None:
    plain = json.loads((whole / FILE_NAME).read_bytes())
    WRONG[name](plain)
    with pytest.raises(DatasetError, match="not a valid manifest"):
        parse_manifest(json.dumps(plain).encode())


def test_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is not a dataset"):
        read_manifest(tmp_path)


def test_verify_says_that_all_is_well(whole: Path) -> None:
    seen: list[tuple[int, int]] = []
    manifest, _ = verify_dataset(whole, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (manifest.bytes, manifest.bytes)


def test_every_flipped_bit_is_found(dataset: Path) -> None:
    rng = random.Random(4)
    paths = sorted(dataset.glob("*.lmdb/data.mdb"))
    for _ in range(20):
        path = rng.choice(paths)
        path.chmod(0o600)
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DigestMismatch, match=f"{path.parent.name}: chunk 0"):
            verify_dataset(dataset)
        path.write_bytes(content)
    verify_dataset(dataset)


def test_what_is_cut_missing_or_renamed_is_named(dataset: Path) -> None:
    first, second, _ = sorted(dataset.glob("*.lmdb/data.mdb"))
    first.chmod(0o600)
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    moved = dataset.rename(dataset.parent / "set-0123456789ab")
    with pytest.raises(DigestMismatch) as caught:
        verify_dataset(moved)
    for words in (f"{first.parent.name}: ", "expected", f"{second.parent.name}: No such file", "name promises 0123456789ab"):
        assert words in str(caught.value)
