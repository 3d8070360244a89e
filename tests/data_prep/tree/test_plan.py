"""From a tree to its manifest: the same files give the same digest, damage and changes are noticed, a kill is gone on from."""

import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from base.chunks import CHUNK_BYTES
from base.errors import DatasetError, DigestMismatch
from data_prep.build.dataset import build_dataset, build_dir_of
from data_prep.build.steps import read_dataset_file
from data_prep.file_set import read_any_manifest, verify_dataset
from data_prep.manifest import to_bytes
from data_prep.spec import spec12
from data_prep.tree.manifest import TreeManifest, read_location
from data_prep.tree.plan import KIND as TREES
from data_prep.tree.plan import changed_since, list_tree
from tests.data_prep.build.building import started
from tests.data_prep.tree.corpus import SIZES, build, contents, plant, spec_of


def test_the_same_files_have_the_same_digest_wherever_and_however_they_lie(tmp_path: Path) -> None:
    one, other = plant(tmp_path / "one"), plant(tmp_path / "other")
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    names = {build(one, tmp_path / "a", shards=1).name, build(other, tmp_path / "b", shards=8).name}
    assert len(names) == 1
    manifest = read_any_manifest(tmp_path / "a" / names.pop())
    assert isinstance(manifest, TreeManifest)
    assert {file.name: file.bytes for file in manifest.files} == dict(SIZES)
    assert str(tmp_path) not in to_bytes(manifest).decode()


def test_nothing_is_copied_and_nothing_of_the_tree_changes(tmp_path: Path) -> None:
    tree = plant(tmp_path / "tree")
    before = {path: path.lstat().st_ctime_ns for path in tree.rglob("*")}
    root = build(tree, tmp_path / "datasets")
    assert sorted(path.name for path in root.iterdir()) == ["manifest.json", "place.json"]
    assert {path: path.lstat().st_ctime_ns for path in tree.rglob("*")} == before
    assert read_location(root).path == str(tree)
    assert verify_dataset(root)[0].bytes == sum(SIZES.values())


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 100])
def test_the_parts_share_all_chunks(tmp_path: Path, parts: int) -> None:
    plan = TREES.plan(spec_of(plant(tmp_path / "tree"), parts), "corpus", tmp_path / "build")
    shared = [(file.name, chunk) for index in range(parts) for file, first, last in plan.share(index) for chunk in range(first, last)]
    assert shared == [(name, chunk) for name, size in sorted(SIZES.items()) for chunk in range(-(-size // CHUNK_BYTES))]
    assert sum(plan.part_bytes(index) for index in range(parts)) == sum(SIZES.values())


def _cut(tree: Path) -> None:
    (tree / "z").write_bytes(b"short")


def _rewrite(tree: Path) -> None:
    (tree / "z").write_bytes(bytes(SIZES["z"]))


CHANGES = {
    "cut": (_cut, "1 file is new, gone or changed (z)"),
    "rewritten": (_rewrite, "1 file is new, gone or changed (z)"),
    "removed": (lambda tree: (tree / "z").unlink(), "1 file is new, gone or changed (z)"),
    "added": (lambda tree: plant(tree, {"new": 3, "newer": 4}), "2 files are new, gone or changed (new, newer)"),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_tree_that_changes_after_it_was_listed_is_told_with_the_file(tmp_path: Path, how: str) -> None:
    change, words = CHANGES[how]
    tree, build_dir = plant(tmp_path / "tree"), tmp_path / "build"
    TREES.plan(spec_of(tree, 2), "corpus", build_dir)
    change(tree)
    with pytest.raises(DatasetError) as caught:
        TREES.finish(build_dir, tmp_path / "datasets")
    assert (words if how == "added" else "z has changed since") in str(caught.value)
    assert "`slipway dataset build corpus --fresh`" in str(caught.value)
    assert not (tmp_path / "datasets").exists()


@pytest.mark.parametrize("how", CHANGES)
def test_a_tree_that_changes_while_it_is_hashed_is_told(tmp_path: Path, how: str) -> None:
    """After its own chunks were read, so that only the look at the end can see it."""
    change, words = CHANGES[how]
    tree, build_dir = plant(tmp_path / "tree"), tmp_path / "build"
    plan = TREES.plan(spec_of(tree, 2), "corpus", build_dir)
    for index in range(plan.parts):
        TREES.build(build_dir, index)
    change(tree)
    with pytest.raises(DatasetError) as caught:
        TREES.finish(build_dir, tmp_path / "datasets")
    assert words in str(caught.value)


def test_a_file_that_changes_while_others_of_its_part_are_read_is_told(tmp_path: Path) -> None:
    tree, build_dir = plant(tmp_path / "tree"), tmp_path / "build"
    TREES.plan(spec_of(tree, 1), "corpus", build_dir)
    with pytest.raises(DatasetError, match="tree/z has changed since the tree was listed"):
        TREES.build(build_dir, 0, lambda _done, _total: _rewrite(tree))
    assert not list(build_dir.glob("shard-*"))


@pytest.mark.parametrize("how", CHANGES)
def test_a_tree_that_changes_after_it_was_hashed_is_noticed(tmp_path: Path, how: str) -> None:
    change, words = CHANGES[how]
    tree, datasets = plant(tmp_path / "tree"), tmp_path / "datasets"
    before = build(tree, datasets)
    build_dir = build_dir_of(datasets, "corpus", spec_of(tree))
    assert changed_since(build_dir) is None
    change(tree)
    assert words in str(changed_since(build_dir))
    with pytest.raises(DatasetError, match="has changed since"):
        build(tree, datasets)
    if how != "added":
        with pytest.raises(DigestMismatch, match=r"z: (5 bytes, expected|chunk 0 of 1 differs|No such file)"):
            verify_dataset(before)
    after = build(tree, datasets, fresh=True)
    assert after.name != before.name
    assert changed_since(build_dir) is None


def test_the_same_files_at_two_places_are_read_where_they_were_looked_at_last(tmp_path: Path) -> None:
    trees = [plant(tmp_path / name) for name in ("one", "other")]
    roots = [build(tree, tmp_path / "datasets") for tree in trees]
    assert roots[0] == roots[1]
    assert read_location(roots[0]).path == str(trees[1])
    build(trees[0], tmp_path / "datasets")
    assert read_location(roots[0]).path == str(trees[0])


def test_a_receipt_that_is_torn_or_of_another_tree_is_made_again(tmp_path: Path) -> None:
    tree, build_dir = plant(tmp_path / "tree"), tmp_path / "build"
    TREES.plan(spec_of(tree, 2), "corpus", build_dir)
    whole = TREES.build(build_dir, 0)
    path = build_dir / "shard-00000.json"
    text, (first, *_) = path.read_bytes(), whole.chunks
    hashes = b'"chunks": ['
    assert hashes in text
    one_more = text.replace(hashes, hashes + b'"%s", ' % first.encode())
    for content in (text[:-9], b"{}", text.replace(b"-0-2", b"-0-3"), one_more):
        path.write_bytes(content)
        assert TREES.build(build_dir, 0) == whole


def test_the_build_directory_of_another_dataset_is_not_taken(tmp_path: Path) -> None:
    TREES.plan(spec_of(plant(tmp_path / "one")), "corpus", tmp_path / "build")
    with pytest.raises(DatasetError, match="belongs to another dataset"):
        TREES.plan(spec_of(plant(tmp_path / "other")), "corpus", tmp_path / "build")


def test_what_was_left_out_is_known_later_and_progress_counts_bytes(tmp_path: Path) -> None:
    tree = plant(tmp_path / "tree")
    (tree / "nothing").mkdir()
    seen: list[tuple[int, int]] = []
    build_dataset(spec_of(tree), "corpus", tmp_path / "datasets", 1, lambda *state: seen.append(state))
    assert seen[-1] == (sum(SIZES.values()),) * 2
    build_dir = build_dir_of(tmp_path / "datasets", "corpus", spec_of(tree))
    assert TREES.read_plan(build_dir).left_out == (("nothing/", "empty directory"),)
    assert TREES.read_plan(build_dir).changes(list_tree(tree)) is None
    assert read_dataset_file(build_dir).samples is None


def start(tree: Path, datasets: Path) -> subprocess.Popen[str]:
    return started({"source": "files", "path": str(tree), "shards": 4}, "corpus", datasets, start_new_session=True)


@pytest.mark.slow
def test_a_kill_at_any_moment_is_gone_on_from(tmp_path: Path) -> None:
    """Large enough that other processes hash it."""
    tree, datasets = plant(tmp_path / "tree", {**SIZES, "large": 80 << 20}), tmp_path / "datasets"
    expected = build(tree, tmp_path / "whole", shards=4).name
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    for _ in range(6):
        process = start(tree, datasets)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=moments.uniform(0.1, 1.2))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    out, errors = start(tree, datasets).communicate(timeout=120)
    assert json.loads(out.splitlines()[-1])["path"] == expected, (seed, errors)
    assert contents(datasets / expected).keys() == {"manifest.json", "place.json"}
    build_dir = datasets / ".build" / f"corpus-{spec12(spec_of(tree, 4))}"
    assert not list(build_dir.glob(".*")), seed


# What is listed of a tree, and what is refused by its name.


def test_all_files_are_listed_in_the_order_of_their_names_whatever_order_storage_has(tmp_path: Path) -> None:
    one, other = plant(tmp_path / "one"), plant(tmp_path / "other", dict(reversed(SIZES.items())))
    assert [(file.name, file.bytes) for file in list_tree(one).files] == sorted(SIZES.items())
    assert [file.name for file in list_tree(other).files] == sorted(SIZES)


def test_one_file_is_a_tree_of_one(tmp_path: Path) -> None:
    plant(tmp_path)
    (tmp_path / "link").symlink_to("tokens.bin")
    for name in ("tokens.bin", "link"):
        tree = list_tree(tmp_path / name)
        assert (tree.root, [file.name for file in tree.files]) == (tmp_path, ["tokens.bin"])


def test_a_link_to_a_file_of_the_tree_is_that_file_once_more(tmp_path: Path) -> None:
    root = plant(tmp_path / "tree", {"a/x": 5, "blobs/1": 7})
    (root / "a" / "link").symlink_to("../blobs/1")
    (tmp_path / "way").symlink_to(root)
    listed = {file.name: (file.bytes, file.at) for file in list_tree(tmp_path / "way").files}
    assert listed == {"a/x": (5, None), "a/link": (7, "blobs/1"), "blobs/1": (7, None)}


def test_what_is_no_data_is_left_out_and_told(tmp_path: Path) -> None:
    root = plant(tmp_path, {"x": 1, ".snapshot/x": 1, ".nfs00000000012345670000001a": 1})
    (root / "nothing" / "in").mkdir(parents=True)
    tree = list_tree(root)
    assert [file.name for file in tree.files] == ["x"]
    assert dict(tree.left_out) == {
        ".snapshot": "of the storage itself", ".nfs00000000012345670000001a": "of the storage itself", "nothing/in/": "empty directory",
    }  # fmt: skip


def _link(target: str) -> Callable[[Path], None]:
    return lambda root: (root / "odd").symlink_to(target)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_link("/etc/passwd"), "odd: a link out of the tree"),
        (_link("../beside"), "odd: a link out of the tree"),
        (_link("nowhere"), "odd: a link to what is not there: No such file or directory"),
        (_link("odd"), "odd: a link to what is not there: Too many levels of symbolic links"),
        (_link("a"), "odd: a link to a directory"),
        (lambda root: os.mkfifo(root / "odd"), "odd: neither a file nor a directory"),
        (lambda root: Path(os.fsdecode(os.fsencode(root) + b"/n\xff")).touch(), r"n\xff: its name is not UTF-8"),
        (lambda root: (root / "new\nline").touch(), r"new\nline: its name holds a control character"),
        (lambda root: (root / "/".join("d" * 66)).mkdir(parents=True), ": nested deeper than 64 directories"),
        (lambda root: (root / "/".join(["n" * 250] * 4)).mkdir(parents=True), None),
        (lambda root: plant(root, {"/".join(["n" * 250] * 4): 1}), "its path has more than 1000 bytes"),
    ],
)
def test_what_cannot_be_staged_as_it_is_is_refused_by_its_name(tmp_path: Path, spoil: Callable[[Path], None], words: str | None) -> None:
    (tmp_path / "beside").touch()
    root = plant(tmp_path / "tree", {"a/x": 1})
    spoil(root)
    if words is None:
        assert len(list_tree(root).files) == 1
        return
    with pytest.raises(DatasetError) as caught:
        list_tree(root)
    assert words in str(caught.value)
    assert "because of 1 entry:" in str(caught.value)
    assert "remove or rename them" in str(caught.value)


@pytest.mark.parametrize("folders", [1, 40])
def test_a_tree_of_very_many_files_is_to_be_packed(tmp_path: Path, folders: int) -> None:
    plant(tmp_path, {f"{number % folders}/{number}": 0 for number in range(60)})
    assert len(list_tree(tmp_path, most=60).files) == 60
    with pytest.raises(DatasetError, match=r"holds more than 50 files: pack them into larger files \(tar shards"):
        list_tree(tmp_path, most=50)


def test_where_nothing_is_there_is_nothing_to_stage(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "nowhere", "No such file"), (tmp_path, "holds no file"), (Path("/dev/null"), "is neither a directory")):
        with pytest.raises(DatasetError, match=words):
            list_tree(path)
