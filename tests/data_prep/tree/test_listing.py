"""What is listed of a tree, and what is refused by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from base.errors import DatasetError
from data_prep.tree.plan import list_tree
from tests.data_prep.tree.corpus import SIZES, plant


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
