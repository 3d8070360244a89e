"""Format and parse names, durations, sizes, counts and paths as people write them."""

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from base.sanitize import printable

# Names that become directory names, and the closest word to a mistyped one.


NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def is_name(text: str) -> bool:
    """Return True if `text` may name a study, a dataset, a model or a cell: `[a-z0-9][a-z0-9._-]{0,63}`, so no separator, no shell
    character."""
    return NAME.fullmatch(text) is not None and ".." not in text


def slug(*words: object, length: int = 40) -> str:
    """Make a short readable name from some words, valid by `is_name` unless there is nothing to take."""
    text = "-".join(re.sub(r"[^a-z0-9.]+", "-", str(word).lower()).strip("-.") for word in words)
    return re.sub(r"-{2,}", "-", re.sub(r"\.{2,}", ".", text))[:length].strip("-.")


def closest(word: str, valid: Iterable[str]) -> str | None:
    """Return the valid word that a user most likely meant, or None: another case, or a similar spelling."""
    small = {other.lower(): other for other in valid}
    if word.lower() == "gpu" and "cuda" in small:
        return "cuda"  # not `cpu`, which is spelt alike
    letters = sorted(word.lower())
    turned = [other for other in small if sorted(other) == letters]  # `modle` is `model`, not `mode`, which has more of it in a row
    found = difflib.get_close_matches(word.lower(), turned or list(small), n=1, cutoff=0.6)
    return small[found[0]] if found else None


def choices(word: str, valid: Iterable[str]) -> str:
    """Return the end of an error message about an unknown word: the valid words, and of several the closest."""
    known = sorted(valid)
    near = closest(word, known) if len(known) > 1 else None
    return f"valid: {', '.join(known)}" + (f"; did you mean {near!r}?" if near else "")


# Durations, sizes, counts and lists as people write them.


MAX_DAYS: Final = 10_000
"""The longest duration that is accepted. With what is added to it, it still fits into the messages between supervisor and nodes."""
_DAY_S: Final = 86_400.0
_MAX_S: Final = MAX_DAYS * _DAY_S
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?", re.IGNORECASE)
_EXPONENT = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def some(items: Sequence[str], most: int, between: str = ", ") -> str:
    """Join at most `most` of the items, followed by how many more there are."""
    return between.join(filter(None, [*items[:most], and_more(len(items), most)]))


def and_more(count: int, shown: int, what: str = "") -> str:
    """Return `and 12 more classes` where `count` is more than `shown`; else nothing."""
    return f"and {count - shown:,} more{what and ' '}{what}" if count > shown else ""


def parse_duration(text: str) -> timedelta:
    """Parse `90s`, `30m`, `1h30m`, `2d`: text with units only, since YAML reads 12:30:00 as the number 45000; at most MAX_DAYS. Raises
    ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if not match or not match.group(0):
        raise ValueError(f"{text!r} is not a duration: write a number with its unit, such as 90s, 30m, 1h30m or 2d")
    days, hours, minutes, seconds = (min(float(digits or 0), 2 * _MAX_S) for digits in match.groups())
    found_s = days * _DAY_S + hours * 3600 + minutes * 60 + seconds
    if found_s > _MAX_S:
        raise ValueError(f"{text!r} is more than {MAX_DAYS} days")
    return timedelta(seconds=found_s)


def format_duration(seconds: float) -> str:
    """Format seconds for people: `0.42 s`, `12.3 s`, `4m05s`, `1h02m`, `3d04h`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{left:02d}s"


def whole_duration(seconds: float) -> str:
    """Format seconds for people who wait: `43 s`, `4m05s`."""
    return f"{seconds:.0f} s" if seconds < 59.5 else format_duration(seconds)


def parse_size(text: str) -> int:
    """Parse `500MB`, `20GiB`, `3TB`, `1024` to bytes; KB is 1000, KiB is 1024. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size: write a number with its unit, such as 500MB, 20GiB or 3TB")
    number, unit, binary = match.groups()
    scale: int = (1024 if binary else 1000) ** _EXPONENT[unit.upper()]
    return round(float(number) * scale)


def format_size(num_bytes: float) -> str:
    """Format bytes for people, in decimal units: `812 B`, `1.5 MB`, `3.0 TB`."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Format a count: `1 cell`, `2 cells`, `1,000 cells`; `nouns` is the plural where it is not the noun and an s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


# Paths that people write in files and on command lines.


_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)


def has_variables(text: str) -> bool:
    """Return True if `$NAME` or `${NAME}` is in the text."""
    return _VARIABLE.search(text) is not None


def variables_of(text: str) -> tuple[str, ...]:
    """List the names of the variables in a text, in order. Raises ValueError for a `$` that begins none: nothing else of a shell's is
    read."""
    rest = _VARIABLE.sub("", text)
    if "$" in rest:
        raise ValueError(f"{text!r} holds a $ that begins neither $NAME nor ${{NAME}}; no other form of a shell is read here")
    return tuple(match[1] or match[2] for match in _VARIABLE.finditer(text))


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}` by their values. Raises ValueError where one is not set, or is empty, and for any other `$`."""
    variables_of(text)

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = environ.get(name, "")
        if not found:
            raise ValueError(f"{text!r}: ${name} is not set on {os.uname().nodename}")
        return found

    return _VARIABLE.sub(value, text)


def expanded_path(text: str, environ: Mapping[str, str]) -> Path:
    """Replace the variables of a text and return it as an absolute path. Raises ValueError."""
    path = expanded(text, environ)
    if not path.startswith("/"):
        raise ValueError(f"{text!r} is {path!r} on {os.uname().nodename}, which does not begin with a /")
    return absolute_path(path, Path("/"))


def absolute_path(text: str, base: Path) -> Path:
    """Return `text` as an absolute path: relative to `base`, with `~` and `~user` for a home directory; links are kept. Raises
    ValueError, with the reason, for what can be no path: a user without a home directory, a control character, half a character; or
    where what `base` adds cannot be written into our files, of which many hold paths."""
    try:
        os.fsencode(text)
        path = os.path.abspath(base / Path(text).expanduser())
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not a path: it holds half of a character") from error
    except RuntimeError as error:
        raise ValueError(f"{text!r}: {text.split('/', 1)[0]} has no home directory on this machine; write the path itself") from error
    if any(character < " " or character == "\x7f" for character in text + path):
        raise ValueError(f"{path!r} is not a path: it holds a control character")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{printable(path)!r} is not UTF-8, as the names in our files are; choose another path, or link to it") from error
    return Path(path)
