"""Names, units, JSON files, commands, logs, errors."""

from __future__ import annotations

import logging
import math
import tracemalloc
from datetime import timedelta
from pathlib import Path

import pytest

from base import errors
from base.errors import NodeLost, PushError, RecordError, SlipwayError, error_named
from base.humanize import (
    and_more,
    choices,
    closest,
    counted,
    format_duration,
    format_size,
    is_name,
    meant_duration,
    parse_duration,
    parse_size,
    slug,
    some,
)
from base.jsonfile import canonical_json, publish_json, read_json
from base.logs import _Formatter, masked, printable
from base.process import describe, last_lines, run


def subclasses(root: type[SlipwayError]) -> list[type[SlipwayError]]:
    return [found for child in root.__subclasses__() for found in [child, *subclasses(child)]]


def test_what_is_left_out_of_a_list_is_counted() -> None:
    assert (and_more(2, 2), and_more(1003, 2), and_more(3, 2, "classes")) == ("", "and 1,001 more", "and 1 more classes")
    assert some(["a", "b"], 2) == "a, b"
    assert some(["a", "b", "c"], 2, "; ") == "a; b; and 1 more"


def test_every_direct_error_class_has_an_exit_code_of_its_own() -> None:
    codes = [error.exit_code for error in SlipwayError.__subclasses__()]
    assert len(set(codes)) == len(codes)
    assert min(codes) >= 10
    assert all(error.exit_code == error.__mro__[1].exit_code for error in subclasses(SlipwayError) if error.__mro__[1] is not SlipwayError)  # type: ignore[attr-defined]


def test_the_error_tree_is_drawn_in_the_docstring() -> None:
    assert errors.__doc__ is not None
    for error in SlipwayError.__subclasses__():
        assert f"{error.__name__} {error.exit_code}" in errors.__doc__


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
    assert closest("torch", ["pytorch", "torch7"]) == "pytorch"
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
    assert meant_duration(text) is None


@pytest.mark.parametrize(("text", "expected"), [("1024", 1024), ("20GiB", 20 << 30), ("3TB", 3 * 10**12), ("1.5 kB", 1500)])
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


def test_bad_size() -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size("many")


def test_formats_for_people() -> None:
    assert [format_duration(s) for s in (0.417, 12.34, 245, 3720, 273600)] == ["0.42 s", "12.3 s", "4m05s", "1h02m", "3d04h"]
    assert [format_size(n) for n in (812, 1_500_000, 3_000_000_000_000)] == ["812 B", "1.5 MB", "3.0 TB"]


def test_canonical_json_is_one_text_per_value() -> None:
    assert canonical_json({"b": 1, "a": [1.5, "ü"]}) == canonical_json({"a": [1.5, "ü"], "b": 1}) == '{"a":[1.5,"ü"],"b":1}'.encode()
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(math.nan)


def test_json_file_round_trip_and_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    publish_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    path.write_text('{"a": ')
    with pytest.raises(RecordError, match=r"x\.json is not valid JSON"):
        read_json(path)
    path.write_text("[" * 100_000)
    with pytest.raises(RecordError):
        read_json(path)
    with pytest.raises(RecordError, match="more than 10 bytes"):
        read_json(path, max_bytes=10)
    with pytest.raises(RecordError, match="No such file"):
        read_json(tmp_path / "missing.json")


@pytest.mark.processes
def test_run_reports_what_happened() -> None:
    result = run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=30)
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert describe(result) == "sh -c 'echo out; echo err >&2; exit 3' ended with 3\nerr"


@pytest.mark.processes
def test_run_names_a_missing_program_and_a_hanging_one() -> None:
    with pytest.raises(SlipwayError, match="no-such-program cannot be started: No such file"):
        run(["no-such-program"], timeout_s=5)
    with pytest.raises(SlipwayError, match=r"sleep 60 did not end within 0\.05 s"):
        run(["sleep", "60"], timeout_s=0.05)


def test_last_lines_skips_blank_ones() -> None:
    assert last_lines("a\n\nb\n \nc\n", 2) == "b\nc"


def test_logs_hide_secrets_and_control_characters() -> None:
    assert masked("api_key=abc123 next") == "api_key=*** next"
    assert printable("a\x1b[31mb\nc") == "a\N{REPLACEMENT CHARACTER}[31mb\nc"
    record = logging.LogRecord("x", logging.INFO, "", 0, "token: %s", ("s3cret",), None)
    assert "s3cret" not in _Formatter("%(message)s").format(record)


def test_counts_have_a_grammar() -> None:
    assert [counted(number, "cell") for number in (0, 1, 2, 10_000)] == ["0 cells", "1 cell", "2 cells", "10,000 cells"]
    assert [counted(number, "process", "processes") for number in (1, 2)] == ["1 process", "2 processes"]


def test_an_error_is_named_by_a_class_of_ours_only() -> None:
    assert error_named("NodeLost") is NodeLost
    for name in ("annotations", "ClassVar", "printable", "error_named", "", "\ud800"):
        assert error_named(name) is SlipwayError
        assert error_named(name, PushError) is PushError


@pytest.mark.parametrize(
    ("word", "valid", "meant"),
    [
        ("gpu", ("site", "cuda", "cpu"), "cuda"),
        ("GPU", ("cuda", "cpu"), "cuda"),
        ("SLURM", ("local", "slurm"), "slurm"),
        ("torque", ("lsf", "pbs"), "pbs"),
        ("Singularity", ("apptainer", "docker"), "apptainer"),
        ("none", ("bare", "docker"), "bare"),
        ("half", ("fp16", "fp32"), "fp16"),
        ("float16", ("fp16", "fp32", "bf16"), "fp16"),
        ("bfloat16", ("fp16", "fp32", "bf16"), "bf16"),
        ("channels_last", ("nchw", "nhwc"), "nhwc"),
        ("Inference", ("infer", "train"), "infer"),
        ("gpu", ("one", "two"), None),
        ("LENET", ("LeNet", "alexnet"), "LeNet"),
    ],
)
def test_the_words_of_other_tools_are_known(word: str, valid: tuple[str, ...], meant: str | None) -> None:
    assert closest(word, valid) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("24:00:00", "24h"),
        ("12:30:05", "12h30m5s"),
        ("1-12:00:00", "1d12h"),
        ("2-06:30", "2d6h30m"),
        ("30:00", "30m"),
        ("30 minutes", "30m"),
        ("30min", "30m"),
        ("1h 30m", "1h30m"),
        ("2 Days, 3 hours", "2d3h"),
        ("90 secs", "90s"),
        ("1 hr", "1h"),
        ("00:00:00", None),
        ("tomorrow", None),
        ("30", None),
        ("3 months", None),
        ("30m 1h", None),
    ],
)
def test_what_a_duration_of_another_form_means(text: str, meant: str | None) -> None:
    assert meant_duration(text) == meant


def test_a_file_takes_as_much_memory_as_it_holds_and_not_as_it_may(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    tracemalloc.start()
    try:
        assert read_json(tmp_path / "a.json", max_bytes=1 << 30) == {"a": 1}
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 << 20
    (tmp_path / "b.json").write_text(f'"{"b" * (3 << 20)}"')
    assert len(read_json(tmp_path / "b.json", max_bytes=4 << 20)) == 3 << 20
    with pytest.raises(RecordError, match="holds more than 2097152 bytes"):
        read_json(tmp_path / "b.json", max_bytes=2 << 20)
