"""Plain values become values of a type, or an error that names the place and what was found there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest

from base.errors import DatasetError, RecordError
from base.typed import Closed, Count, FromOne, Name, ReadableAs, json_as, read_as


class Pair(NamedTuple):
    name: str
    number: int


class Entry(TypedDict):
    count: Count
    note: NotRequired[str | None]


@dataclass(frozen=True, kw_only=True)
class Part:
    name: Name
    sizes: tuple[FromOne, ...]
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if len(self.sizes) > 3:
            raise ValueError("more than three sizes")


@dataclass(frozen=True, kw_only=True)
class Whole:
    parts: tuple[Part, ...]
    pair: Pair
    place: Path
    ratio: float
    by_name: Mapping[str, bool]
    either: Count | str
    size: tuple[int, int] | None
    entries: list[Annotated[dict[str, Any], ReadableAs(Entry)]]


PLAIN: dict[str, Any] = {
    "parts": [{"name": "x", "sizes": [1, 2], "of another version": 3}],
    "pair": ["p", 1],
    "place": "/a",
    "ratio": 1,
    "by_name": {"a": True},
    "either": "auto",
    "size": None,
    "entries": [{"count": 0, "more": [1]}],
}


def test_a_value_of_its_type() -> None:
    found = read_as(Whole, PLAIN, "f.json")
    assert found.parts == (Part(name="x", sizes=(1, 2)),)
    assert (found.pair, found.place, found.ratio, found.either) == (Pair("p", 1), Path("/a"), 1.0, "auto")
    assert found.entries == [{"count": 0, "more": [1]}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": {}}, "parts: expected a list, found {}"),
        ({"parts": [{"sizes": []}]}, r"parts\[0\]: the key 'name' is missing"),
        ({"parts": [{"name": "../x", "sizes": []}]}, r"parts\[0\]\.name: expected a name .*, found '\.\./x'"),
        ({"parts": [{"name": "x", "sizes": [1, 0]}]}, r"parts\[0\]\.sizes\[1\]: expected a number from 1 on, found 0"),
        ({"parts": [{"name": "x", "sizes": [True]}]}, r"parts\[0\]\.sizes\[0\]: expected a whole number, found True"),
        ({"parts": [{"name": "x", "sizes": [1, 1, 1, 1]}]}, r"parts\[0\]: more than three sizes"),
        ({"parts": [{"name": "x", "sizes": [], "kind": ["a"]}]}, r"parts\[0\]\.kind: expected one of a, b, found \['a'\]"),
        ({"pair": ["p"]}, "pair: expected a list of 2, found"),
        ({"place": "a\0b"}, "place: expected a path"),
        ({"ratio": 10**400}, "ratio: expected a number, found a very large number"),
        ({"ratio": float("inf")}, "ratio: expected a number, found inf"),
        ({"by_name": {"\ud800\x1b": 1}}, "by_name\\.\\\\ud800\N{REPLACEMENT CHARACTER}: expected true or false, found 1"),
        ({"either": -1}, "either: expected a number from 0 on or text, found -1"),
        ({"size": [1, 2, 3]}, "size: expected a list of 2"),
        ({"entries": [{"count": 0, "note": 3}]}, r"entries\[0\]\.note: expected text, found 3"),
        ({"entries": [{"count": "x" * 10_000}]}, r"entries\[0\]\.count: expected a whole number, found 'x{90,97}\.\.\.'"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=rf"^f\.json: {message}") as caught:
        read_as(Whole, {**PLAIN, **change}, "f.json", DatasetError, "build it again")
    assert str(caught.value).endswith("; build it again")
    str(caught.value).encode()


def test_what_a_program_says_is_read_by_a_type() -> None:
    assert json_as(list[int], "[1, 2]", "the answer") == [1, 2]
    for said in ("", "\udcff", "[1e999]", "[true]", "{}"):
        with pytest.raises(RecordError, match="^the answer"):
            json_as(list[int], said, "the answer")


@dataclass(frozen=True, kw_only=True)
class Written(Closed):
    name: Name
    kind: Literal["small", "large"] = "small"
    made: Path = field(init=False, default=Path())


def test_of_what_people_write_an_unknown_key_is_an_error_and_the_closest_word_is_named() -> None:
    assert read_as(Written, {"name": "x"}, "f.yaml") == Written(name="x")
    for value, message in (
        ({"name": "x", "kimd": "small"}, "unknown key 'kimd'; valid: kind, name; did you mean 'kind'"),
        ({"name": "x", "made": "/a"}, "unknown key 'made'"),
        ({"name": "x", 3: 4}, "unknown key '3'"),
        ({"name": "x", "kind": "smal"}, r"kind: expected one of small, large \(did you mean 'small'\?\), found 'smal'"),
        ({"name": "x", "kind": 3}, "kind: expected one of small, large, found 3"),
    ):
        with pytest.raises(RecordError, match=f"^f.yaml: {message}"):
            read_as(Written, value, "f.yaml")
