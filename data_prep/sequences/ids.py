"""Token ids as they lie in files: little-endian, 2 or 4 bytes each. The largest number stands for no token: the end of a row is filled up
with it."""

from __future__ import annotations

from typing import Final

MOST_IDS: Final = 2**31 - 1
"""Of a vocabulary: a program has them as 32-bit numbers with a sign."""
END_OF_BYTES: Final = 256
"""The vocabulary of bytes: 0 to 255, and the end of a document."""
END_OF_WORDS: Final = 0
UNKNOWN: Final = 1
"""The vocabulary of words: the end of a document, any word that is not among the most frequent, and these, the most frequent first."""


def width_of(vocabulary: int) -> int:
    """Bytes of an id, so that one number is left."""
    return 2 if vocabulary < 1 << 16 else 4


def type_of(width: int) -> str:
    """Of ids of so many bytes, as numpy calls it."""
    return f"<u{width}"


def pad_of(width: int) -> int:
    """What stands for no token."""
    return (1 << 8 * width) - 1
