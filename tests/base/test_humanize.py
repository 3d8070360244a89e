"""Names, durations, sizes, counts and paths, as people write and read them."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from base.humanize import (
    absolute_path,
    and_more,
    choices,
    closest,
    counted,
    format_duration,
    format_size,
    is_name,
    parse_duration,
    parse_size,
    slug,
    some,
)


def test_what_is_left_out_of_a_list_is_counted() -> None:
    assert (and_more(2, 2), and_more(1003, 2), and_more(3, 2, "classes")) == ("", "and 1,001 more", "and 1 more classes")
    assert some(["a", "b"], 2) == "a, b"
    assert some(["a", "b", "c"], 2, "; ") == "a; b; and 1 more"


@pytest.mark.parametrize("name", ["lenet", "a", "resnet-18_v1.5", "0x"])
def test_good_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "-a", ".a", "A", "a/b", "a..b", "a b", "$(x)", "a\n", "a;b", "x" * 65, "é"])
def test_bad_names(name: str) -> None:
    assert not is_name(name)


def test_slug_makes_names() -> None:
    assert slug("ResNet 50", "b32", "../x") == "resnet-50-b32-x"
    assert is_name(slug("Ünïcode / photos..", "n4"))


def test_closest_and_choices() -> None:
    assert closest("btach_size", ["batch_size", "nodes"]) == "batch_size"
    assert closest("zzz", ["batch_size"]) is None
    assert closest("modle", ["mode", "model"]) == "model"
    assert "did you mean 'folder'" in choices("foldr", ["tar", "folder"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", timedelta(seconds=90)), ("1h30m", timedelta(minutes=90)), ("2d", timedelta(days=2)), ("0.5s", timedelta(seconds=0.5))],
)
def test_durations(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "30", "12:30:00", "-5m", "5 parsecs", "m"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["10001d", "10000d1s", "999999999999999999999h", "9" * 5000 + "s"])
def test_a_duration_has_an_end(text: str) -> None:
    """One of more than 31 years ended each run as node_lost, one of 20 digits the command with a traceback."""
    assert parse_duration("10000d") == timedelta(days=10000)
    with pytest.raises(ValueError, match="is more than 10000 days"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "expected"), [("1024", 1024), ("20GiB", 20 << 30), ("3TB", 3 * 10**12), ("1.5 kB", 1500)])
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


def test_bad_size() -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size("many")


def test_formats_for_people() -> None:
    assert [format_duration(s) for s in (0.417, 12.34, 245, 3720, 273600)] == ["0.42 s", "12.3 s", "4m05s", "1h02m", "3d04h"]
    assert [format_size(n) for n in (812, 1_500_000, 3_000_000_000_000)] == ["812 B", "1.5 MB", "3.0 TB"]


def test_counts_have_a_grammar() -> None:
    assert [counted(number, "cell") for number in (0, 1, 2, 10_000)] == ["0 cells", "1 cell", "2 cells", "10,000 cells"]
    assert [counted(number, "process", "processes") for number in (1, 2)] == ["1 process", "2 processes"]


@pytest.mark.parametrize(
    ("word", "valid", "meant"),
    [
        ("SLURM", ("local", "slurm"), "slurm"),
        ("gpu", ("one", "two"), None),
        ("gpu", ("site", "cuda", "cpu"), "cuda"),
        ("LENET", ("LeNet", "alexnet"), "LeNet"),
    ],
)
def test_a_word_of_another_case_is_known(word: str, valid: tuple[str, ...], meant: str | None) -> None:
    assert closest(word, valid) == meant


# Paths that people write.


@pytest.mark.parametrize(
    ("base", "words"), [("a\nb", "control character"), (os.fsdecode(b"a\xffb"), r"'/x/a\\\\xffb/storage' is not UTF-8"), ("aé b'$x", None)]
)
def test_what_lies_above_a_relative_path_counts_too(base: str, words: str | None) -> None:
    """A traceback of Snakemake and of LMDB, in a directory whose name is not UTF-8."""
    if words is None:
        assert absolute_path("storage", Path("/x", base)) == Path("/x", base, "storage")
        return
    with pytest.raises(ValueError, match=words):
        absolute_path("storage", Path("/x", base))
