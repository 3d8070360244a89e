"""Text and token ids become rows of equal length: what is in them, and what cannot be."""

import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from base.errors import ConfigError, DatasetError
from base.publish import remove_tree
from data_prep.build.dataset import build_dataset
from data_prep.file_set import parse_file_set, verify_dataset
from data_prep.reader import DatasetChanged, ReaderError, Sequences, open_dataset, shards
from data_prep.sequences.manifest import SequenceManifest, padding, read_sequence_manifest
from data_prep.sequences.plan import PIECE_BYTES
from data_prep.spec import parse_spec

END = 256
_EMPTY = "{'descr': ('<u2',), 'fortran_order': False, 'shape': ()}"


def build(place: Path, source: str = "text", **keys: Any) -> tuple[SequenceManifest, Sequences]:
    """The dataset of what lies in `place`/in: its manifest, and as a program reads it."""
    spec = parse_spec({"source": source, "path": "in", "shards": 4, "splits": {}, **keys}, place)
    root = place / "storage" / build_dataset(spec, "set", place / "storage", jobs=1).path
    assert verify_dataset(root) == (read_sequence_manifest(root), root)
    return read_sequence_manifest(root), open_dataset(str(root))


def rows(dataset: Sequences, split: str = "train") -> list[list[int]]:
    found = dataset.split(split)
    return [found.read(index).tolist() for index in range(len(found))]


def write(place: Path, **files: bytes) -> Path:
    (place / "in").mkdir(exist_ok=True)
    for name, content in files.items():
        (place / "in" / name.replace("_", ".")).write_bytes(content)
    return place


def test_bytes_follow_one_another_in_windows(tmp_path: Path) -> None:
    """Documents of a split make one stream, each with its end; a row shares one token with the next, so that each token but the first is a
    target once. What is left at the end is no row."""
    write(tmp_path, a_txt=b"abcdefgh", b_txt=b"ij")
    manifest, dataset = build(tmp_path, sequence_length=3)
    stream = [*b"abcdefgh", END, *b"ij", END]
    assert rows(dataset) == [stream[start : start + 4] for start in (0, 3, 6)]
    assert (manifest.vocabulary, manifest.end, manifest.id_bytes, manifest.lengths) == (257, END, 2, (3,))
    assert (manifest.samples, manifest.tokens, dataset.shapes) == (3, 9, ([3], [3, 257]))
    assert manifest.rejected_count == 0


def test_a_fraction_is_the_end_of_the_text(tmp_path: Path) -> None:
    write(tmp_path, a_txt=bytes(range(100)))
    manifest, dataset = build(tmp_path, sequence_length=9, splits={"test": 0.2, "validation": 0.1})
    assert {split: held.samples for split, held in manifest.splits.items()} == {"train": 8, "test": 2, "validation": 1}
    assert rows(dataset, "validation")[0][0] == 8 * 9
    assert rows(dataset, "test")[0][0] == 9 * 9
    assert sorted(row[0] for row in rows(dataset)) == list(range(0, 72, 9))


def test_words_are_counted_and_the_rest_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, ptb_train_txt=b" the cat sat \nthe dog\n\nthe <unk>\n", ptb_valid_txt="the flügel sat".encode())
    manifest, dataset = build(tmp_path, documents="line", vocabulary="words", words=5, sequence_length=2, splits=None)
    assert manifest.words == ("the", "cat", "dog")
    assert manifest.vocabulary == 5
    assert rows(dataset) == [[2, 3, 1], [1, 0, 2], [2, 4, 0], [0, 2, 1]]
    assert rows(dataset, "validation") == [[2, 1, 1]]


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    write(tmp_path, a_txt=b"\xef\xbb\xbfthe cat", b_txt=b"\xef\xbb\xbfthe cat the", c_txt=b"\xef\xbb\xbf")
    manifest, _ = build(tmp_path, vocabulary="words", sequence_length=2)
    assert manifest.words == ("the", "cat")


@pytest.mark.parametrize("vocabulary", ["bytes", "words"])
def test_white_space_alone_is_no_text(tmp_path: Path, vocabulary: str) -> None:
    write(tmp_path, a_txt=b" \n\t \n" * 100, b_txt=b"\n")
    with pytest.raises(DatasetError, match=r"holds (white space only: no text|no words) to train on"):
        build(tmp_path, vocabulary=vocabulary, sequence_length=2)


def test_a_document_is_a_row_of_the_shortest_bucket_that_holds_it(tmp_path: Path) -> None:
    write(tmp_path, a_txt=b"a\nbbbb\n\ncccccc\n" + b"d" * 21)
    manifest, dataset = build(tmp_path, documents="line", buckets=[2, 4, 8])
    found = {length: samples for length, (samples, _) in manifest.groups("train").items()}
    long = [*b"d" * 21, END]
    expected = [[*b"a", END], [*b"bbbb", END], [*b"cccccc", END], long[:9], long[8:17], long[16:]]
    assert sorted(rows(dataset)) == sorted(expected)
    assert found == {2: 1, 4: 1, 8: 4}
    assert manifest.tokens == sum(len(row) - 1 for row in expected) == 1 + 4 + 6 + 21
    assert padding(manifest.groups("train")) == pytest.approx(1 - 32 / (2 + 4 + 4 * 8))
    split = dataset.split("train")
    assert split.read_many([1]).tolist() == [[*b"bbbb", END]]
    assert split.read_many([0]).tolist() == [[*b"a", END, -1]]
    with pytest.raises(ReaderError, match="found 2 and 4 tokens in split 'train'"):
        split.read_many([0, 1])


@pytest.mark.parametrize("kind", ["bin", "bin32", "npy", "npy32", "npy2d"])
def test_files_of_ids_are_read_as_they_are(tmp_path: Path, kind: str) -> None:
    """nanoGPT writes train.bin and val.bin of uint16."""
    ids = np.arange(40, dtype=np.uint32 if "32" in kind else np.uint16)
    (tmp_path / "in").mkdir()
    for name, part in (("train", ids), ("val", ids[:12])):
        if kind.startswith("npy"):
            np.save(tmp_path / "in" / f"{name}.npy", part.reshape(-1, 4) if kind == "npy2d" else part)
        else:
            part.tofile(tmp_path / "in" / f"{name}.bin")
    id_type = {"id_type": "uint32"} if kind == "bin32" else {}
    manifest, dataset = build(tmp_path, "tokens", vocabulary=40, sequence_length=10, splits=None, **id_type)
    assert rows(dataset) == [list(range(start, start + 11)) for start in (0, 10, 20)]
    assert rows(dataset, "validation") == [list(range(11))]
    assert manifest.id_bytes == 2
    _, wide = build(tmp_path, "tokens", vocabulary=70_000, sequence_length=10, splits=None, **id_type)
    assert rows(wide) == rows(dataset)


def test_documents_of_ids_end_with_the_id_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.array([1, 2, 0, 3, 4, 5, 0, 6], np.uint16).tofile(tmp_path / "in" / "a.bin")
    _, dataset = build(tmp_path, "tokens", vocabulary=7, end=0, buckets=[2, 3])
    assert rows(dataset) == [[1, 2, 0], [3, 4, 5, 0]]


def test_many_rows_share_a_value(tmp_path: Path) -> None:
    write(tmp_path, a_txt=bytes(range(256)) * 3000)
    manifest, dataset = build(tmp_path, sequence_length=63, shards=3)
    assert [shard.rows for shard in manifest.shards] == [512] * 3
    stream = np.append(np.tile(np.arange(256, dtype=np.int32), 3000), np.int32(END))
    split = dataset.split("train")
    for index in (0, 511, 512, len(split) // 2, len(split) - 1):
        assert split.read(index).tolist() == stream[63 * index : 63 * index + 64].tolist()
    split.prefetch(range(0, len(split), 100))
    assert manifest.bytes < 1.1 * len(split) * 64 * 2


def test_the_same_text_elsewhere_is_the_same_dataset(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        build(write(tmp_path / name, a_txt=b"some text\n" * 100, b_txt=b"more"), sequence_length=7)
        (root,) = (tmp_path / name / "storage").glob("set-*")
        digests.append(root.name)
        content = (root / "manifest.json").read_bytes()
        assert [file.bytes for file in parse_file_set(content, "manifest.json").files] == [
            shard.bytes for shard in read_sequence_manifest(root).shards
        ]
    assert digests[0] == digests[1]


def test_what_was_published_and_is_gone_is_made_again(tmp_path: Path) -> None:
    """The streams of ids were cleared away with the end of the first build."""
    write(tmp_path, a_txt=b"some text\n" * 100)
    before, _ = build(tmp_path, sequence_length=7)
    (root,) = (tmp_path / "storage").glob("set-*")
    assert not list((tmp_path / "storage").glob(".build/*/spool"))
    remove_tree(root)
    after, _ = build(tmp_path, sequence_length=7)
    assert before == after
    remove_tree(root)
    (tmp_path / "in" / "a.txt").write_bytes(b"another text")
    with pytest.raises(DatasetError, match="a.txt has changed since the source was listed"):
        build(tmp_path, sequence_length=7)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "zero bytes"),
        (b"good \xff bad", "not UTF-8: invalid start byte near byte 5; vocabulary: bytes takes any bytes"),
        (b"cut \xc3", "not UTF-8: unexpected end of data near byte 5; vocabulary: bytes takes any bytes"),
        (b"a " + b"b" * 1001, "a word of more than 1000 bytes: no text of words; vocabulary: bytes takes any bytes"),
        (b"c" * (PIECE_BYTES + 9), "a word of more than 1000 bytes: no text of words; vocabulary: bytes takes any bytes"),
    ],
)
def test_a_file_that_is_no_text_is_left_out_and_named(tmp_path: Path, content: bytes, reason: str) -> None:
    write(tmp_path, a_txt=b"one two three " * 9, b_txt=content)
    manifest, _ = build(tmp_path, vocabulary="words", sequence_length=3)
    assert [*manifest.rejected] == [{"name": "b.txt", "reason": reason}]
    with pytest.raises(DatasetError, match=r"strict: 1 entry of the source cannot be used:\n  b.txt: "):
        build(tmp_path, vocabulary="words", sequence_length=3, strict=True)


def test_a_line_may_be_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    line = b"ab " * ((PIECE_BYTES + 9) // 3)
    write(tmp_path, a_txt=line + b"\nx y")
    manifest, dataset = build(tmp_path, documents="line", buckets=[4, 1 << 20], shards=2)
    assert manifest.tokens == len(line) + 3
    assert rows(dataset)[0] == [*b"x y", END]
    words, _ = build(tmp_path, documents="line", vocabulary="words", buckets=[4, 1 << 20], shards=2)
    assert (words.words, words.tokens) == (("ab", "x", "y"), len(line) // 3 + 2)


@pytest.mark.parametrize(
    ("name", "content", "keys", "words"),
    [
        ("a.bin", np.array([1, 2, 9, 3, 4], np.uint16).tobytes(), {}, "the id at position 2 is 9, and the vocabulary has 0 to 8; set voc"),
        ("a.bin", b"abc", {}, "holds 3 bytes, which is no whole number of ids of 2 bytes: it was cut, or set id_type"),
        ("a.npy", b"abc", {}, "a.npy is no .npy file that can be read"),
        ("a.npy", np.lib.format.magic(1, 0) + b"\x10\0{'descr': 'O'", {}, "a.npy is no .npy file that can be read"),
        ("a.txt", b"abc", {}, "holds no file of token ids: source: tokens wants names that end in .bin or .npy; found a.txt"),
        ("a.bin", b"\1\0\2\0", {}, "split train would have no sequence of 2 tokens and one more"),
        ("a.bin", b"\1\0" * 9, {"sequence_length": None, "end": 1, "buckets": [4]}, "split train would have no sequence of 2 to 5 tokens"),
        ("a.bin", b"\1\0" * 9, {"splits": {"test": 0.1}, "sequence_length": 8}, "split train would have no sequence"),
    ],
)  # fmt: skip
def test_ids_that_cannot_be_used_are_named(tmp_path: Path, name: str, content: bytes, keys: dict[str, Any], words: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    with pytest.raises(DatasetError, match=words):
        build(tmp_path, "tokens", **{"vocabulary": 9, "sequence_length": 2, **keys})


def test_a_npy_whose_header_promises_gigabytes_is_not_read_whole(tmp_path: Path) -> None:
    write(tmp_path, train_npy=b"\x93NUMPY\x02\x00\xff\xff\xff\x0f{")
    with (tmp_path / "in" / "train.npy").open("r+b") as file:
        file.truncate(1 << 29)
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match="is no .npy file that can be read"):
            build(tmp_path, "tokens", vocabulary=100, sequence_length=10)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


def test_a_npy_of_objects_or_of_another_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.npy"
    for array, words in (
        (np.array([1.5, 2.5]), "holds float64 of shape"),
        (np.array([{}]), "holds object of shape"),
        (np.arange(9, dtype=">u2"), "wants uint16 or uint32, little-endian"),
    ):
        np.save(path, array, allow_pickle=True)
        with pytest.raises(DatasetError, match=words):
            build(tmp_path, "tokens", vocabulary=9, sequence_length=2)
    np.save(path, np.arange(9, dtype=np.uint16))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DatasetError, match="its header promises others: it was cut or is damaged"):
        build(tmp_path, "tokens", vocabulary=9, sequence_length=2)


@pytest.mark.parametrize("header", ["{'shape': (3,", "  {'a':1}\n {\n  x\n y", "{1: 2, 'a': 3}", "{[]: 1}", _EMPTY, "(3L,)"])
def test_a_npy_with_a_damaged_header_is_named(tmp_path: Path, header: str) -> None:
    """numpy reads it as words of Python, and lets through what it stumbles over."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.npy").write_bytes(np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(DatasetError, match=r"a\.npy is no \.npy file that can be read"):
        build(tmp_path, "tokens", vocabulary=9, sequence_length=2)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"source": "text"}, "exactly one is needed of sequence_length"),
        ({"source": "text", "sequence_length": 3, "buckets": [3]}, "exactly one is needed of sequence_length"),
        ({"source": "text", "buckets": [4, 2]}, r"buckets: \[4, 2\] are not in order"),
        ({"source": "text", "sequence_length": 3, "vocabulary": 100}, "vocabulary: found 100; with source: text valid: bytes, words"),
        ({"source": "text", "sequence_length": 3, "words": 100}, "words is for vocabulary: words"),
        ({"source": "text", "sequence_length": 3, "end": 1}, "end is for source: tokens; with source: text leave it out"),
        ({"source": "text", "sequence_length": 3, "size": 8}, "size is for images; with source: text leave it out"),
        ({"source": "tokens", "sequence_length": 3}, "vocabulary: source: tokens needs the number of ids"),
        (
            {"source": "tokens", "sequence_length": 3, "vocabulary": 99999999999},
            "found 99999999999; valid: bytes, words .*from 3 to 2147483647",
        ),
        ({"source": "text", "sequence_length": 3, "vocabulary": "letters"}, "found 'letters'; valid: bytes, words"),
        ({"source": "tokens", "sequence_length": 3, "vocabulary": 9, "end": 9}, "end: 9 is not among the ids 0 to 8"),
        ({"source": "tokens", "buckets": [3], "vocabulary": 9}, "which sequence is how long is told by the id that ends a document"),
        ({"source": "folder", "sequence_length": 3}, "sequence_length is for token sequences; with source: folder leave it out"),
        ({"source": "folder", "end": 3}, "end is for source: tokens; with source: folder leave it out"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_spec({"path": "in", **keys}, tmp_path)


def test_keys_of_sequences_are_in_no_specification_of_images(tmp_path: Path) -> None:
    """Or the datasets that people have would be built again under other names."""
    found = parse_spec({"source": "folder", "path": "in"}, tmp_path).to_json()
    assert not {"vocabulary", "words", "documents", "id_type", "end", "sequence_length", "buckets"} & found.keys()
    text = parse_spec({"source": "text", "path": "in", "sequence_length": 3}, tmp_path).to_json()
    assert "size" not in text
    assert parse_spec(text, tmp_path).to_json() == text


def test_a_shard_that_was_changed_is_named(tmp_path: Path) -> None:
    write(tmp_path, a_txt=b"some text\n" * 100)
    manifest, dataset = build(tmp_path, sequence_length=7, shards=1)
    (root,) = (tmp_path / "storage").glob("set-*")
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").chmod(0o644)
    for old, new, words in (
        (f'"rows":{manifest.shards[0].rows}', '"rows":9', "bytes, expected 9 rows of 16; stage the dataset again"),
        ('"id_bytes":2', '"id_bytes":4', "bytes, expected 142 rows of 32; stage the dataset again"),
    ):
        (copy / "manifest.json").write_text(text.replace(old, new))
        assert old in text
        with pytest.raises(DatasetChanged, match=words):
            open_dataset(str(copy)).split("train").read(0)
    shards.close_all()
    assert dataset.split("train").read(0).tolist() == [*b"some tex"]
