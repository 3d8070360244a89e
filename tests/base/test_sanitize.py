"""The boundary where foreign text and numbers become ours, and writing that nothing of it makes fail."""

import json
import logging
import math
import os
import tracemalloc
from pathlib import Path

import pytest

from base.calls import LimitedCall, call_limited
from base.errors import DigestMismatch, NodeLost, PushError, RecordError, SlipwayError, StagingError, StorageError, error_named
from base.jsonfile import canonical_json, json_line, parse_json, publish_json, read_json
from base.logs import _Formatter, masked
from base.sanitize import MAX_WHOLE, number, plain, printable, text, whole

NAME = b"a\xff.jpg".decode(errors="surrogateescape")


def raise_of_file() -> None:
    raise StagingError(f"{NAME} is damaged\x1b[31m")


def test_text_is_shown_as_people_read_it() -> None:
    assert printable(f"{NAME} \ud800 \x1b[31m\n\tü😀") == "a\\xff.jpg \\ud800 �[31m\n\tü😀"
    assert text("x" * 3000, 10) == "xxxxxxx..."
    assert text("x" * 10, 10) == "x" * 10
    assert [text(value) for value in (None, 3, 10**400, True)] == ["None", "3", "a very large number", "True"]
    assert text([1, {"a": NAME}]) == "[1, {'a': 'a\\\\xff.jpg'}]"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("photo\u202egnp.exe", "photo\\u202egnp.exe"),  # reads as photoexe.png
        ("a\u2066b\u2069\u200f\u061c", "a\\u2066b\\u2069\\u200f\\u061c"),
        ("le\u200bnet\ufeff\u00ad", "le\\u200bnet\\ufeff\\u00ad"),  # two names that look alike
        ("one\u2028two\uffff", "one\\u2028two\\uffff"),
        ("a\U000e0041b", "a\\U000e0041b"),
        ("\x1b]0;title\x07\x9b31m", "\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}31m"),
        ("Straße, 東京, ё, ‘–’ \u00a0×", "Straße, 東京, ё, ‘–’ \u00a0×"),
    ],
)
def test_what_turns_text_or_is_not_seen_stands_as_its_number(text: str, seen: str) -> None:
    assert printable(text) == printable(printable(text)) == seen


def test_numbers_are_finite_and_stay_so() -> None:
    wrong = (True, None, "3", [1], math.nan, math.inf, -math.inf, 10**400, -(10**400), 1e308)
    assert [number(value) for value in wrong] == [None] * len(wrong)
    assert [whole(value) for value in (*wrong, -1, 2.5, MAX_WHOLE + 1, 1e300)] == [None] * (len(wrong) + 4)
    assert str(number(-0.0)) == str(number(5e-324)) == "0.0"
    assert (number(3), whole(3), whole(3.0), whole(-2, least=-5), whole(MAX_WHOLE)) == (3.0, 3, 3, -2, MAX_WHOLE)
    assert whole(2**63 - 1, most=2**63 - 1) == 2**63 - 1


def test_a_plain_value_is_bounded() -> None:
    deep: object = "x"
    for _ in range(100):
        deep = [deep]
    assert plain(deep) == [[[[None]]]]
    assert plain({NAME: [math.inf, 10**400, 1.5, 7, None, True]}) == {"a\\xff.jpg": [None, None, 1.5, 7, None, True]}
    assert len(plain(list(range(1000)))) == 200
    json.dumps(plain({str(key): "x" * 5000 for key in range(1000)}), allow_nan=False)


@pytest.mark.parametrize("value", [NAME, {NAME: [NAME]}, "\ud800", "\udfff\ud800", "ü😀", {"a": math.nan, "b": [math.inf, 1.5]}])
def test_no_value_makes_a_write_fail(tmp_path: Path, value: object) -> None:
    publish_json(tmp_path / "x.json", value)
    shown = read_json(tmp_path / "x.json")
    assert json.loads(json_line(value)) == shown
    assert json_line(value).isascii()


def test_a_name_that_is_no_utf8_is_read_back_as_it_is_shown(tmp_path: Path) -> None:
    publish_json(tmp_path / "x.json", {"reason": NAME})
    assert read_json(tmp_path / "x.json") == {"reason": "a\\xff.jpg"}
    assert parse_json(canonical_json([NAME]), "x") == ["a\\xff.jpg"]


@pytest.mark.processes
def test_the_message_of_an_error_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(StagingError) as caught:
        call_limited("staging", raise_of_file, timeout_s=10)
    assert str(caught.value) == "a\\xff.jpg is damaged\N{REPLACEMENT CHARACTER}[31m"
    (tmp_path / "reason").write_text(str(DigestMismatch(NAME)), encoding="utf-8")


@pytest.mark.processes
def test_an_answer_that_was_cut_off_is_one_of_storage() -> None:
    call = LimitedCall("reading", os._exit, 0, timeout_s=10)
    call._chunks.append(b'["ok", {"a": ')
    with pytest.raises(StorageError, match="reading: the child process died in its answer"):
        call.wait()


@pytest.mark.parametrize(
    "content",
    [
        b"1" * 400,
        b"[-%b]" % (b"9" * 19),
        b"[1e400]",
        b"[1E+999]",
        b"1" * 400 + b".0",
        b"1" * 400 + b"e5 ",
        b"NaN",
        b'{"a":-Infinity}',
        b'"\\ud800"',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b"",
        b"[" * 100_000,
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
    ],
)
def test_json_that_is_not_ours_is_refused(content: bytes) -> None:
    with pytest.raises(RecordError, match=r"^some/file\.json "):
        parse_json(content, "some/file.json")


@pytest.mark.parametrize(
    "value",
    [
        [9223372036854775807, -9223372036854775807, 1e308, 1.5e-300, 0.14285714285714285],
        {"ü": "😀", "a": "[[[{", "hash": "0e000" * 12 + "0" * 40, "text": "[" * 100},
        json.loads("[" * 63 + "]" * 63),
    ],
)
def test_json_of_ours_is_read(value: object) -> None:
    assert parse_json(json.dumps(value).encode(), "x") == value
    assert parse_json(canonical_json(value), "x") == value


def test_canonical_json_is_one_text_per_value() -> None:
    assert canonical_json({"b": 1, "a": [1.5, "ü"]}) == canonical_json({"a": [1.5, "ü"], "b": 1}) == '{"a":[1.5,"ü"],"b":1}'.encode()
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(math.nan)
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        canonical_json({"a": {"x", "y"}})


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


def test_logs_hide_secrets_and_control_characters() -> None:
    assert masked("api_key=abc123 next") == "api_key=*** next"
    assert printable("a\x1b[31mb\nc") == "a\N{REPLACEMENT CHARACTER}[31mb\nc"
    record = logging.LogRecord("x", logging.INFO, "", 0, "token: %s", ("s3cret",), None)
    assert "s3cret" not in _Formatter("%(message)s").format(record)


def subclasses(root: type[SlipwayError]) -> list[type[SlipwayError]]:
    return [found for child in root.__subclasses__() for found in [child, *subclasses(child)]]


def test_every_direct_error_class_has_an_exit_code_of_its_own() -> None:
    codes = [error.exit_code for error in SlipwayError.__subclasses__()]
    assert len(set(codes)) == len(codes)
    assert min(codes) >= 10
    assert all(error.exit_code == error.__mro__[1].exit_code for error in subclasses(SlipwayError) if error.__mro__[1] is not SlipwayError)  # type: ignore[attr-defined]


def test_an_error_is_named_by_a_class_of_ours_only() -> None:
    assert error_named("NodeLost") is NodeLost
    for name in ("annotations", "ClassVar", "printable", "error_named", "", "\ud800"):
        assert error_named(name) is SlipwayError
        assert error_named(name, PushError) is PushError
