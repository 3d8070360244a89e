"""A tree of files on its way to a node: read where it lies, checked as every dataset, and told where it is not what was hashed."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import DigestMismatch, StagingError, StorageError
from data_prep.cache.entries import ls
from data_prep.file_set import verify_dataset
from data_prep.staging import StageOptions, stage
from data_prep.staging.copy import CopyOptions
from tests.data_prep.tree.corpus import SIZES, build, contents, plant

QUICK = StageOptions(patience_s=0.0, copy=CopyOptions(sync_bytes=1 << 20))
TOTAL = sum(SIZES.values())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return plant(tmp_path / "tree")


@pytest.fixture
def source(tree: Path, tmp_path: Path) -> Path:
    return build(tree, tmp_path / "storage" / "datasets")


@pytest.mark.parametrize("direct", [False, None, True])
def test_a_copy_is_the_tree_and_the_next_use_is_a_hit(tree: Path, source: Path, tmp_path: Path, direct: bool | None) -> None:
    (tree / "a" / "b" / "new-folder").mkdir()  # no file: it does not make the tree another one
    staged = stage(source, tmp_path / "cache", options=replace(QUICK, copy=CopyOptions(direct=direct)))
    assert contents(staged.root / "files") == contents(tree)
    assert (staged.hit, staged.storage_bytes, staged.bytes) == (False, TOTAL, TOTAL)
    assert {stat.S_IMODE(path.stat().st_mode) for path in staged.root.rglob("*") if path.is_file()} == {0o444}
    assert {stat.S_IMODE(path.stat().st_mode) for path in staged.root.rglob("*") if path.is_dir()} == {0o700}
    assert verify_dataset(staged.root)[1] == staged.root
    tree.rename(tmp_path / "gone")
    again = stage(source, tmp_path / "cache", options=QUICK)
    assert (again.hit, again.checked_bytes) == (True, 0) or again.checked_bytes == TOTAL
    (row,) = ls(tmp_path / "cache")
    assert (row.name, row.bytes) == (source.name, TOTAL)


def test_what_a_program_put_among_the_files_is_gone_at_the_next_use(
    tree: Path, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("not of the cache")
    files = stage(source, tmp_path / "cache", options=QUICK).root / "files"
    inode = (files / "tokens.bin").stat().st_ino
    (files / "a" / "index.cache").write_text("made by a program")
    (files / "a" / "link").symlink_to(mine)
    (files / "new" / "deeper").mkdir(parents=True)
    os.mkfifo(os.fsencode(files / "a") + b"/\xff")
    again = stage(source, tmp_path / "cache", options=QUICK)
    assert (again.hit, contents(again.root / "files"), sorted(path.name for path in files.iterdir())) == (
        True, contents(tree), sorted(path.name for path in tree.iterdir()),
    )  # fmt: skip
    assert (files / "tokens.bin").stat().st_ino == inode
    assert mine.read_text() == "not of the cache"
    assert "index.cache" in caplog.text
    (files / "a").rename(tmp_path / "elsewhere")
    (files / "a").symlink_to(tmp_path / "elsewhere")  # the same files, by a way that the manifest does not know
    last = stage(source, tmp_path / "cache", options=QUICK)
    assert not (last.root / "files" / "a").is_symlink()
    assert contents(last.root / "files") == contents(tree)


def test_a_link_of_the_tree_is_a_file_of_the_copy(tree: Path, tmp_path: Path) -> None:
    (tree / "a" / "link").symlink_to("../tokens.bin")
    staged = stage(build(tree, tmp_path / "datasets"), tmp_path / "cache", options=QUICK)
    assert not (staged.root / "files" / "a" / "link").is_symlink()
    assert contents(staged.root / "files") == contents(tree)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "words"),
    [("flip", "tokens.bin: chunk 1 of 3"), ("cut", "tokens.bin has 9 bytes, its manifest says"), ("remove", "tokens.bin does not exist"),
     ("link", "tokens.bin cannot be read: Too many levels of symbolic links"), ("move", "where the files of corpus-")],
)  # fmt: skip
def test_a_tree_that_changed_after_it_was_hashed_is_told_with_the_file(
    tree: Path, source: Path, tmp_path: Path, how: str, words: str
) -> None:
    file = tree / "tokens.bin"
    match how:
        case "flip":
            before = file.stat()
            _flip(file)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "cut":
            file.write_bytes(b"123456789")
        case "remove":
            file.unlink()
        case "link":
            file.unlink()
            file.symlink_to("/etc/passwd")
        case _:
            tree.rename(tmp_path / "elsewhere")
    with pytest.raises((DigestMismatch, StagingError, StorageError)) as caught:
        stage(source, tmp_path / "cache", options=QUICK)
    assert words in str(caught.value)
    assert str(tree) in str(caught.value)
    assert how == "link" or "`slipway dataset build corpus --fresh`" in str(caught.value)
    assert not list(tmp_path.glob(f"cache/datasets/{source.name}"))
