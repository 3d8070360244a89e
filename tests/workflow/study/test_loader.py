"""The YAML reader: what it takes, and that every trap has an answer that names file and line."""

from pathlib import Path

import pytest

from base.errors import ConfigError
from workflow.study.loader import MAX_BYTES, dotted, kind_of, parse_document, read_document

FILE = Path("some/study.yaml")


def values(text: str) -> object:
    return parse_document(text, FILE, "study").value


def test_plain_values() -> None:
    text = "a: word\nb: 12\nc: -0.5\nd: true\ne: null\nf: [1, {g: 'no'}]\nh: \"12:30:00\"\n"
    text += "n: {<<: {b: 1}}\ni: 1e-3\nj: 1e3\nk: 2026-01-01\nl: y\nm: |\n  two\n  lines\n"
    assert values(text) == {
        "a": "word", "b": 12, "c": -0.5, "d": True, "e": None, "f": [1, {"g": "no"}], "h": "12:30:00", "i": 0.001, "j": 1000.0,
        "k": "2026-01-01", "l": "y", "m": "two\nlines\n",
        "n": {"<<": {"b": 1}},
    }  # fmt: skip


def test_lines_of_keys_and_list_entries() -> None:
    document = parse_document("a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n", FILE, "study")
    assert document.where(("b",)) == "some/study.yaml:2"
    assert document.where(("b", 1, "d")) == "some/study.yaml:5"
    assert document.where(("b", 1, "nothing", 7)) == "some/study.yaml:4"
    assert document.where(("nothing",)) == "some/study.yaml:1"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 12:30:00", 2, "12:30:00 readers 1h30m"),
        *[
            (f"a: {word}", 1, f"a: {word} readers")
            for word in ("1:30", "no", "On", "010", "0x1F", "1_000", ".inf", ".NaN", "1e999", "-1e999")
        ],
        ("a: 1234567890123456789012", 1, "readers decimal"),
        *[
            (text, 1, "anchors")
            for text in ("a: &here 1", "a: &here [1]\nb: *here", "b: *here", "a: !!python/object:os.x [1]", "a: !!str 1")
        ],
        ("a: 1\nb: 2\na: 3", 3, "'a' second line 1"),
        ("a:\n  b: 1\n  b: 2", 3, "a: 'b' second line 2"),
        ("? [1]\n: 2", 1, "key word"),
        ("1: a", 1, "key 1"),
        ("~: a", 1, "key"),
        ("a: 1\n---\nb: 2", 2, "second document"),
        ("a: [", 2, "not YAML"),
        ("a:\n\t- 1", 2, "tab"),
        ("a: 'x", 1, "not YAML"),
        ("[" * 10000, 1, "32 levels"),
        ("{a: " * 10000, 1, "32 levels"),
        ("- " * 5000 + "a", 1, "32 levels"),
        ("- a", 1, "mapping found a list"),
        ("word", 1, "mapping 'word'"),
    ],
)
def test_refused_with_file_and_line(text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        values(text)
    message = str(caught.value)
    assert message.startswith(f"{FILE}:{line}: "), message
    for word in words.split():
        assert word in message


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null", "\ufeff", "--- \n...\n"])
def test_an_empty_file_is_called_empty(text: str) -> None:
    with pytest.raises(ConfigError, match="empty; `slipway init DIR` writes one with comments"):
        values(text)


def test_a_control_character_is_refused() -> None:
    with pytest.raises(ConfigError, match="not YAML"):
        values("a: \x01")


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(good, "study").value == {"a": 1}
    with pytest.raises(ConfigError, match=r"missing\.yaml cannot be read: No such file"):
        read_document(tmp_path / "missing.yaml", "study")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_document(tmp_path, "study")
    with pytest.raises(ConfigError, match="not a path"):
        read_document(Path("a\0b"), "study")
    for kind in ("study", "site"):
        with pytest.raises(ConfigError, match=f"the {kind} file /dev/zero cannot be read: it is a device"):
            read_document(Path("/dev/zero"), kind)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml:2: byte 0xe9 is not UTF-8"):
        read_document(latin, "study")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"a: " + b"x" * MAX_BYTES)
    with pytest.raises(ConfigError, match="at most 1 MiB"):
        read_document(large, "study")


def test_terminal_codes_do_not_reach_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        values('"\\e[31m": 1\n"\\e[31m": 2')
    assert "\x1b" not in str(caught.value)


def test_words_for_places_and_values() -> None:
    assert dotted(("axes", "nodes", 0, "x")) == "axes.nodes[0].x"
    assert kind_of(None) == "nothing"
    assert kind_of("x" * 200).endswith("...'")
    assert kind_of({}) == "a mapping (key: value)"
