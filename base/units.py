"""Durations, sizes, counts and lists as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

MOST_DAYS: Final = 10_000
"""Far beyond any job; what is added to it is still less than what the supervisor and its nodes tell each other as a time."""
_DAY_S: Final = 86_400.0
_MOST_S: Final = MOST_DAYS * _DAY_S
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d)(?::([0-5]?\d))?", re.ASCII)
_WORD = re.compile(r"(\d+)\s*(d|h|m|s)(?:ays?|ours?|rs?|in(?:ute)?s?|ec(?:ond)?s?)?(?![a-z])[\s,]*", re.ASCII)
_WORDS = re.compile(rf"(?:{_WORD.pattern})+", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?", re.IGNORECASE)
_EXPONENT = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def some(items: Sequence[str], most: int, between: str = ", ") -> str:
    """Join at most `most` of the items, followed by how many more there are."""
    return between.join(filter(None, [*items[:most], and_more(len(items), most)]))


def and_more(count: int, shown: int, what: str = "") -> str:
    """Return `and 12 more classes` where `count` is more than `shown`; else nothing."""
    return f"and {count - shown:,} more{what and ' '}{what}" if count > shown else ""


def parse_duration(text: str) -> timedelta:
    """Parse `90s`, `30m`, `1h30m`, `2d`: text with units only, since YAML reads 12:30:00 as the number 45000; at most MOST_DAYS. Raises
    ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if not match or not match.group(0):
        raise ValueError(f"{text!r} is not a duration: write a number with its unit, such as 90s, 30m, 1h30m or 2d")
    days, hours, minutes, seconds = (min(float(digits or 0), 2 * _MOST_S) for digits in match.groups())
    found_s = days * _DAY_S + hours * 3600 + minutes * 60 + seconds
    if found_s > _MOST_S:
        raise ValueError(f"{text!r} is more than {MOST_DAYS} days")
    return timedelta(seconds=found_s)


def meant_duration(text: str) -> str | None:
    """Translate a clock's time (`24:00:00`, Slurm's `1-12:00:00`) or words (`30 minutes`, `1h 30m`) to our form; None for others."""
    clock = _CLOCK.fullmatch(text.strip())
    if clock:
        days, hours, minutes, seconds = clock.groups()
        if days is None and seconds is None:  # as Slurm reads 30:00
            hours, minutes, seconds = None, hours, minutes
        parts: tuple[tuple[str, str], ...] = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"))
    elif _WORDS.fullmatch(text.strip().lower()):
        parts = tuple((match[1], match[2]) for match in _WORD.finditer(text.lower()))
    else:
        return None
    try:
        meant = "".join(f"{int(number)}{unit}" for number, unit in parts if number and int(number))
        return meant if parse_duration(meant) and meant != text else None
    except ValueError:
        return None


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
