"""Convert names between bytes (in files and archives), text with surrogates (in programs) and printable text, one to one."""

import re

_INTEGER = re.compile(r"[+-]?\d{1,18}")
IMAGE_SUFFIXES = frozenset({"jpg", "jpeg", "jpe", "jfif", "png", "bmp", "gif", "webp"})
TRAIN = "train"
SPLIT_NAMES = {"train": TRAIN, "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


def to_text(raw: bytes) -> str:
    """Decode the bytes of a file name. `to_raw` gives the same bytes back whatever they are, and the locale plays no part."""
    return raw.decode("utf-8", "surrogateescape")


def to_raw(text: str) -> bytes:
    """Return the bytes of a name that `to_text` made."""
    return text.encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """Replace backslashes, control characters and undecodable bytes by escapes, so that different names stay different."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def class_name(text: str) -> str:
    """Convert a label to the name of a class. Whole numbers get their plain form, so that 3 and 03 are one class."""
    return str(int(text)) if _INTEGER.fullmatch(text) else printable(text)


def sorted_classes(names: set[str]) -> list[str]:
    """Sort classes by name, or by value where all are whole numbers."""
    if all(_INTEGER.fullmatch(name) for name in names):
        return sorted(names, key=int)
    return sorted(names)


def has_image_suffix(name: str) -> bool:
    """Return True if the name has the suffix of a listed image format."""
    return name.rpartition(".")[2].lower() in IMAGE_SUFFIXES


def own_splits(top_level: set[str]) -> dict[str, str]:
    """Return the splits {folder: split} of a source whose top level is `train`, `val`, `test` and the like. It is empty where these are
    class names."""
    found = {name: SPLIT_NAMES[name.lower()] for name in top_level if name.lower() in SPLIT_NAMES}
    unambiguous = len(found) == len(top_level) == len(set(found.values()))
    return found if unambiguous and TRAIN in found.values() else {}
