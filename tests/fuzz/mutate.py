"""Damage and malice for files: what a cut, an edit, another version or a hostile hand makes of one. The same for the same seed."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any, Final, Literal

import yaml

Style = Literal["json", "lines", "yaml", "text"]

DEEP: Final = 300
LONG: Final = 100_000
DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_AGAIN: Final = "@again@"
_RAW: Final = {"@1e999@": "1e999", "@-0@": "-0", "@-1e400@": "-1e400", "@nan@": "NaN", "@digits@": "9" * 5000}


def _nested(kind: type) -> Any:
    value: Any = 1
    for _ in range(DEEP):
        value = [value] if kind is list else {"a": value}
    return value


ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 1.5, -0.5, 2**31, 2**53 + 1, 2**63, 2**64, 10**18, 10**400, -(10**400), float("inf"), 5e-324, 1e308),
    *_RAW,
    *(
        "",
        " ",
        "x",
        "0",
        "-1",
        "²",
        "٣",
        "nan",
        "\ud800",
        "a\udcffb",
        "a\0b",
        "\x1b[31m",
        "../../etc/passwd",
        "/",
        ".",
        "x" * LONG,
        "é" * 300,
    ),
    *([], {}, [None], [[]], {"": None}, [1] * 3000, {str(number): number for number in range(300)}, ["x", 1], {"a": {"b": []}}),
    *(_nested(list), _nested(dict)),
)
WORDS: Final = (
    b"",
    b"-",
    b"nan",
    b"1e999",
    b"9" * 5000,
    "²".encode(),
    "٣".encode(),
    b"\xff",
    b"\0",
    b"x" * 70_000,
    b"[",
    b"]",
    b"=",
    b"|",
    b"(x9)",
)


def mutated(content: bytes, style: Style, chance: random.Random) -> bytes:
    """One to three changes of `content`."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        way = _BY_VALUE.get(style, _of_words) if chance.random() < 0.75 else _of_bytes
        content = way(content, chance)
    return content


def _of_bytes(content: bytes, chance: random.Random) -> bytes:
    place, end = sorted((chance.randint(0, len(content)), chance.randint(0, len(content))))
    some = bytes(chance.randrange(256) for _ in range(chance.randint(1, 4)))
    return chance.choice(
        (
            content[:place],
            content[place:],
            content[:place] + some + content[place + len(some) :],
            content[:place] + some + content[place:],
            content[:place] + content[end:],
            content[:end] + content[place:end] + content[end:],
            content.replace(b'"', b"'", 1),
            b"\xef\xbb\xbf" + content,
            content.decode("utf-8", "replace").encode("utf-16"),
            b"",
            content * 2,
        )
    )


def _of_words(content: bytes, chance: random.Random) -> bytes:
    """For texts of programs: a word or a line of it becomes another."""
    lines = content.split(b"\n")
    number = chance.randrange(len(lines))
    words = lines[number].split(b" ")
    place = chance.randrange(len(words))
    word = words[place]
    cut = chance.randint(0, len(word))
    head, sign, tail = word.partition(chance.choice((b"=", b"|", b",", b":", b"(", b"-")))
    odd = chance.choice(WORDS)
    words[place] = chance.choice((odd, word[:cut] + odd + word[cut:], head + sign + odd, odd + sign + tail, word + word))
    lines[number] = chance.choice((b" ".join(words), b" ".join(words), b" ".join(words), b"", lines[number] * 2))
    return b"\n".join(lines)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in entries for inner in _paths(item, (*path, key)))]


def changed_value(value: Any, chance: random.Random) -> Any:
    """A node of it is another, or is missing, or has another beside it."""
    value = copy.deepcopy(value)
    path = chance.choice(_paths(value)[:2000])
    odd = copy.deepcopy(chance.choice(ODD))
    if not path:
        return odd if chance.random() < 0.5 else [value]
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    way = chance.randrange(6)
    if way <= 2:
        parent[key] = odd
    elif way == 3:
        del parent[key]
    elif isinstance(parent, dict):
        parent[f"{key}{_AGAIN}" if way == 4 else chance.choice(("another", "", "\ud800", "x" * 500))] = odd
    else:
        parent.insert(key, odd if way == 4 else parent[key])
    return value


def _json(value: Any) -> bytes:
    text = json.dumps(value).replace(_AGAIN, "")
    for mark, raw in _RAW.items():
        text = text.replace(f'"{mark}"', raw)
    return text.encode()


def _of_json(content: bytes, chance: random.Random) -> bytes:
    try:
        value = json.loads(content)
        return _json(changed_value(value, chance))
    except (ValueError, RecursionError):
        return _of_bytes(content, chance)


def _of_lines(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    number = chance.randrange(len(lines))
    lines[number] = _of_json(lines[number], chance)
    return b"\n".join(lines)


def _of_yaml(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return content + b"\nx: &a [1]\ny: " + b"[" * 20 + b"*a" + b"]" * 20 + b"\n"
    try:
        return yaml.dump(changed_value(yaml.safe_load(content), chance), Dumper=DUMPER, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError, yaml.YAMLError):
        return _of_bytes(content, chance)


_BY_VALUE: Final[dict[Style, Callable[[bytes, random.Random], bytes]]] = {
    "json": _of_json,
    "lines": _of_lines,
    "yaml": _of_yaml,
    "text": _of_words,
}
