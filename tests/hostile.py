"""What a hostile hand sends: bytes of ours, changed, and others. The same for the same seed."""

import random
from typing import Final

WORDS: Final = (
    b"",
    b"\n",
    b"\0",
    b"\xff",
    b"\r\n\r\n",
    b'"',
    b"{",
    b"}",
    b"[" * 300,
    b"9" * 400,
    b"1e999",
    b"\\ud800",
    b"null",
)


def changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """`content` cut, with other bytes in it, or followed by others."""
    place, end = sorted((chance.randint(0, len(content)), chance.randint(0, len(content))))
    some = chance.choice((chance.randbytes(chance.randint(1, 40)), chance.choice(WORDS)))
    return chance.choice(
        (
            content[:place],
            content[place:],
            content[:place] + some + content[place + len(some) :],
            content[:place] + some + content[place:],
            content[:place] + content[end:],
            content + some,
            content * 2,
            chance.randbytes(chance.randint(1, 400)),
            some,
        )
    )
