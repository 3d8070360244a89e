"""Folders of class folders and text lists: what people have on disk, with everything odd in it."""

import os
from pathlib import Path

import pytest

from base.errors import DatasetError, StorageError
from data_prep.build.shard import KIND as IMAGES
from data_prep.manifest import to_bytes
from data_prep.sources import folder, listing
from data_prep.sources.files import FileReader, retried
from data_prep.sources.naming import class_name, own_splits, printable, sorted_classes, to_raw, to_text
from data_prep.sources.types import MAX_MEMBER_BYTES, BadSample, ListedSample, Refused, Root
from tests.data_prep.build.corpus import build, class_folders, encoded, pixels, prepared, read_back, reasons, write

IMAGE = encoded(pixels(1))


def scan(path: Path, source: object = folder) -> dict[str, ListedSample | Refused]:
    root = Root(path=path, scratch=path.parent / "scratch")
    return {entry.name: entry for entry in source.scan(root, source.prepare(root))}  # type: ignore[attr-defined]


def test_a_folder_with_everything_odd_in_it(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", {"cat": 3, "dog": 2})
    outside = write(tmp_path / "secret.png", encoded(pixels(99)))
    write(root / "cat" / "deep" / "er" / "x.PNG", encoded(pixels(50)))
    write(root / "cat" / "no suffix", encoded(pixels(51)))
    write(root / "cat" / "notes.txt", b"no picture")
    write(root / "cat" / "empty.png", b"")
    write(root / "cat" / "page.png", b"<html>404</html>")
    write(root / "cat" / ".DS_Store", b"x")
    write(root / "cat" / "cut.png", IMAGE[:-30])
    write(root / "cat" / "new\nline.png", encoded(pixels(52)))
    write(root / ".git" / "x.png", IMAGE)
    write(root / "loose.png", IMAGE)
    (root / "empty").mkdir()
    with (root / "cat" / "huge.png").open("wb") as huge:
        huge.truncate(MAX_MEMBER_BYTES + 1)
    raw = os.fsencode(root / "dog") + b"/\xff\xfe.png"
    Path(os.fsdecode(raw)).write_bytes(encoded(pixels(53)))
    os.mkfifo(root / "dog" / "pipe.png")
    (root / "dog" / "out.png").symlink_to(outside)
    (root / "dog" / "in.png").symlink_to("../cat/001.png")
    (root / "dog" / "broken.png").symlink_to("nowhere.png")
    (root / "dog" / "self.png").symlink_to("self.png")
    (root / "dog" / "loop").symlink_to("..")
    (root / "linked").symlink_to("cat")
    place, manifest = build(tmp_path, {"source": "folder", "path": str(root), "splits": {}, "shards": 2})
    found = reasons(manifest)
    expected = {
        ".git/": "hidden folder",
        "cat/.DS_Store": "hidden file",
        "cat/cut.png": "truncated PNG",
        "cat/empty.png": "zero bytes",
        "cat/huge.png": "larger than 256 MiB",
        "cat/notes.txt": "not an image of a listed format",
        "cat/page.png": "not an image of a listed format",
        "dog/broken.png": "not readable: No such file or directory",
        "dog/loop": "a link that leaves the folder",
        "dog/out.png": "a link that leaves the folder",
        "dog/pipe.png": "not a regular file",
        "dog/self.png": "not readable: Too many levels of symbolic links",
        "empty/": "empty class folder",
        "linked": "a link is not followed here",
        "loose.png": "lies outside the class folders",
    }
    assert found == expected
    assert manifest.rejected_count == len(expected)
    assert manifest.classes == ("cat", "dog")
    images = read_back(place)
    assert {image.tobytes() for image, label in images if label == "cat"} == {pixels(s).tobytes() for s in (0, 1, 2, 50, 51, 52)}
    dogs = sorted(image.tobytes() for image, label in images if label == "dog")
    assert dogs == sorted(pixels(s).tobytes() for s in (1000, 1001, 53, 1))


def test_names_stay_apart_and_printable() -> None:
    names = [b"a", b"a\\xff", b"a\xff", b"a\n", b"a\\n", "\u202eabc".encode(), "ünï".encode()]
    shown = [printable(to_text(name)) for name in names]
    assert len(set(shown)) == len(names)
    assert all(text.isprintable() and text.encode() for text in shown)
    assert [to_raw(to_text(name)) for name in names] == names
    assert sorted_classes({"10", "9", "-1"}) == ["-1", "9", "10"]
    assert sorted_classes({"10", "9", "b"}) == ["10", "9", "b"]
    assert class_name("007") == "7"


def test_case_twins_are_two(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for number, name in enumerate(["Cat/a.png", "cat/a.png", "cat/A.png"]):
        write(root / name, encoded(pixels(number)))
    place, manifest = build(tmp_path, {"source": "folder", "path": str(root), "splits": {}, "shards": 1})
    assert manifest.classes == ("Cat", "cat")
    assert len(read_back(place)) == 3


def test_folders_of_splits_are_the_sources_own(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "val", "test")):
        for index, name in enumerate(("cat", "dog")):
            write(tmp_path / "photos" / split / name / "1.png", encoded(pixels(10 * number + index)))
    place, manifest = build(tmp_path, {"source": "folder", "path": str(tmp_path / "photos"), "shards": 3})
    assert {name: split.samples for name, split in manifest.splits.items()} == {"train": 2, "validation": 2, "test": 2}
    assert {image.tobytes() for image, _ in read_back(place, "validation")} == {pixels(10).tobytes(), pixels(11).tobytes()}
    assert own_splits({"train", "test", "bird"}) == {}
    assert own_splits({"val", "test"}) == {}
    assert own_splits({"train", "val", "valid"}) == {}


def test_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", {"train": 2, "test": 2})
    _, manifest = build(tmp_path, {"source": "folder", "path": str(root), "splits": {}, "shards": 1})
    assert manifest.classes == ("test", "train")


def test_a_split_with_a_folder_of_its_own(tmp_path: Path) -> None:
    main = class_folders(tmp_path / "a", {"cat": 3, "dog": 3})
    test = class_folders(tmp_path / "b", {"cat": 1, "dog": 2, "zebra": 2})
    spec = {"source": "folder", "path": str(main), "splits": {"test": {"path": str(test)}, "validation": 0.3}, "shards": 3}
    _, manifest = build(tmp_path, spec)
    assert manifest.classes == ("cat", "dog")
    assert manifest.left_out_classes == ("zebra",)
    assert manifest.splits["test"].class_counts == (1, 2)
    assert manifest.splits["train"].samples + manifest.splits["validation"].samples == 6
    assert str(tmp_path) not in (tmp_path / "datasets" / "set-x").name + to_bytes(manifest).decode()


def test_a_list_of_paths_and_labels(tmp_path: Path) -> None:
    for number, name in enumerate(["a.png", "two words.png", "sub/c.png", "d.png", "tab d.png"]):
        write(tmp_path / "data" / name, encoded(pixels(number)))
    write(tmp_path / "outside.png", IMAGE)
    (tmp_path / "data" / "link.png").symlink_to("../outside.png")
    lines = [
        b"\xef\xbb\xbfa.png cat",
        b"two words.png   dog",
        b"./sub/c.png\tbig dog",
        b"",
        f"{tmp_path}/data/d.png 007".encode(),
        b"tab d.png\tcat\r",
        b"a.png dog",
        b"../outside.png cat",
        b"/etc/passwd cat",
        b"link.png cat",
        b"missing.png cat",
        b"sub cat",
        b"nolabel",
        b"\xff\xfe.png cat",
    ]
    path = write(tmp_path / "data" / "list.txt", b"\n".join(lines))
    place, manifest = build(tmp_path, {"source": "list", "path": str(path), "splits": {}, "shards": 1})
    expected = [("cat", 0), ("dog", 1), ("big dog", 2), ("7", 3), ("cat", 4)]
    assert sorted((label, image.tobytes()) for image, label in read_back(place)) == sorted((c, pixels(s).tobytes()) for c, s in expected)
    found = reasons(manifest)
    assert found["a.png"] == "a second entry of this name"
    assert all("leaves the folder" in found[name] for name in ("../outside.png", "/etc/passwd", "link.png"))
    assert found["line 13: nolabel"] == "a path and a label are needed, with a tab or a blank between them"
    assert found["sub"] == "not a regular file"
    assert "\\xff\\xfe.png" in found
    assert manifest.rejected_count == 8


def test_a_list_with_commas_is_told_what_to_write(tmp_path: Path) -> None:
    path = write(tmp_path / "data" / "list.csv", b"path,label\na.png,cat\n")
    with pytest.raises(DatasetError) as caught:
        build(tmp_path, {"source": "list", "path": str(path), "splits": {}, "shards": 1})
    for line in ("line 1: path,label", "line 2: a.png,cat"):
        assert f"{line}: a path and a label are needed, with a tab or a blank between them, no comma" in str(caught.value)


def test_the_place_of_a_list_is_not_in_its_names(tmp_path: Path) -> None:
    built = []
    for number in (1, 2):
        data = tmp_path / str(number) / "data"
        for index in range(4):
            write(data / f"{index}.png", encoded(pixels(index)))
        write(data / "l.txt", "".join(f"{data}/{i}.png {i % 2}\n" for i in range(4)).encode())
        built.append(build(tmp_path / str(number), {"source": "list", "path": str(data / "l.txt"), "shards": 2})[0].name)
    assert built[0] == built[1]


def test_a_list_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no list"):
        scan(write(tmp_path / "x", b"\0binary"), listing)
    with pytest.raises(DatasetError, match="no list"):
        scan(write(tmp_path / "x", b"a" * 10_000), listing)
    with pytest.raises(DatasetError, match="does not exist"):
        scan(tmp_path / "none", listing)


def test_what_is_missing_or_useless_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="does not exist"):
        build(tmp_path, {"source": "folder", "path": "nowhere"})
    with pytest.raises(DatasetError, match="is no folder"):
        build(tmp_path, {"source": "folder", "path": str(write(tmp_path / "file", b"x"))})
    (tmp_path / "void").mkdir()
    with pytest.raises(DatasetError, match="it is empty"):
        build(tmp_path, {"source": "folder", "path": "void"})
    write(tmp_path / "flat" / "a.png", IMAGE)
    with pytest.raises(DatasetError, match="outside the class folders"):
        build(tmp_path, {"source": "folder", "path": "flat"})
    with pytest.raises(DatasetError, match="per_class.min"):
        build(tmp_path, {"source": "folder", "path": str(class_folders(tmp_path / "few", {"a": 2})), "per_class": {"min": 3}})


def test_a_file_that_changes_after_the_plan_is_named(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", {"cat": 2})
    build_dir = prepared(tmp_path, {"source": "folder", "path": str(root), "splits": {}, "shards": 1})
    (root / "cat" / "001.png").write_bytes(encoded(pixels(77, 9, 9)))
    with pytest.raises(DatasetError, match=r"cat/001\.png has changed"):
        IMAGES.build(build_dir, 0)
    (root / "cat" / "001.png").unlink()
    with pytest.raises(DatasetError, match=r"cat/001\.png has changed"):
        IMAGES.build(build_dir, 0)
    assert not list(build_dir.glob("*.lmdb"))
    assert not list(build_dir.glob(".*.part-*"))


def test_a_file_swapped_for_a_link_or_a_pipe_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x.png", IMAGE)
    status = (tmp_path / "a" / "x.png").stat()
    found = ListedSample("x.png", "c", status.st_size, status.st_mtime_ns)
    reader = FileReader(tmp_path / "a")
    assert reader.read(found) == IMAGE
    assert reader.head(found, 5) == IMAGE[:5]
    (tmp_path / "a" / "x.png").rename(tmp_path / "y.png")
    (tmp_path / "a" / "x.png").symlink_to(tmp_path / "y.png")
    with pytest.raises(DatasetError, match="has changed"):
        reader.read(found)
    (tmp_path / "a" / "x.png").unlink()
    os.mkfifo(tmp_path / "a" / "x.png")
    with pytest.raises(DatasetError, match="not a regular file"):
        reader.read(found)


def test_storage_that_stumbles_is_asked_three_times() -> None:
    answers: list[object] = [OSError(5, "Input/output error"), OSError(116, "Stale file handle"), "content"]

    def read() -> object:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert retried("x", read) == "content"
    answers[:] = [OSError(5, "Input/output error")] * 3
    with pytest.raises(StorageError, match="3 times"):
        retried("photos/x.png", read)
    answers[:] = [PermissionError(13, "Permission denied")]
    with pytest.raises(PermissionError):
        retried("x", read)


def test_a_file_without_permission_is_a_bad_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.png", IMAGE)

    def denied(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    reader = FileReader(tmp_path)
    monkeypatch.setattr(os, "open", denied)  # root may read everything
    with pytest.raises(BadSample, match="permission denied"):
        reader.read(ListedSample("x.png", "c", len(IMAGE), 0))
