"""Check and bound text and numbers that others wrote before they are used.

Foreign is all that programs, archives, file names, other users and other hosts say. What has passed here can be shown on a terminal and
written as UTF-8 and as JSON, and is as large as we say: no value makes a later write fail for its characters, its size or its depth.
"""

import re
from itertools import islice
from typing import Any, Final

MAX_TEXT: Final = 2000
MAX_WHOLE: Final = 2**53
"""The largest whole number that every reader of JSON gives back as it is."""
MAX_NUMBER: Final = 1e100

_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e0fff]"
)
"""What a reader does not see, and what lets other text seem to be something else: control characters, and those that turn the direction of
text, break or join it, or take no room."""


def printable(text: str) -> str:
    r"""Return `text` safe for a terminal, a page, and for UTF-8: control characters (but newline and tab) become U+FFFD, what turns the
    direction of text or is not seen `\u202e`, a byte of a name that is not UTF-8 `\xff`, half of a pair of UTF-16 `\ud800`."""
    return _UNSEEN.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0xA0:
        return "\N{REPLACEMENT CHARACTER}"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def text(value: object, max_chars: int = MAX_TEXT) -> str:
    """Return printable text of at most `max_chars` characters; other values as Python writes them."""
    if isinstance(value, str):
        found = value
    elif isinstance(value, list | dict):
        found = repr(plain(value))
    else:
        found = repr(value) if not isinstance(value, int) or abs(value) <= MAX_WHOLE else "a very large number"
    shown = printable(found[: max_chars + 1])
    return shown if len(shown) <= max_chars else shown[: max_chars - 3] + "..."


def quoted(value: object, max_chars: int = 100) -> str:
    """Return a value for messages; text is in quotes."""
    return repr(text(value, max_chars)) if isinstance(value, str) else text(value, max_chars)


def number(value: object) -> float | None:
    """Return a finite number of at most MAX_NUMBER, so that sums, squares and quotients are finite too; a tiny one becomes 0 without a
    sign. None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        return None
    return float(value) if abs(value) >= 1 / MAX_NUMBER else 0.0


def whole(value: object, least: int = 0, most: int = MAX_WHOLE) -> int | None:
    """Return a whole number from `least` to `most`, also one that is written as 3.0; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most or value % 1:
        return None
    return int(value)


def ascii_int(value: str) -> int | None:
    """Parse 1 to 18 ASCII digits; None for anything else, digits of other scripts and signs included."""
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 18 else None


def plain(value: object, depth: int = 4, items: int = 200, max_chars: int = MAX_TEXT) -> Any:
    """Copy a JSON value with printable texts, finite numbers (null for others), and at most `items` entries of lists and objects and
    `depth` levels."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= MAX_WHOLE else None
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list | tuple):
        return [plain(item, depth - 1, items, max_chars) for item in value[:items]] if depth else None
    if isinstance(value, dict):
        entries = islice(value.items(), items)
        return {text(key, 200): plain(item, depth - 1, items, max_chars) for key, item in entries} if depth else None
    return text(value, max_chars)
