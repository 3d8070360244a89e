"""What nodes say to each other while they stage the same dataset, after base/handshake.py: frames. Pure: bytes in, values out.

A frame is one byte of kind and four of a number: of a chunk, or for HAVE of how many chunk numbers follow. The bytes of a CHUNK
follow its frame, as many as the manifest says; nothing that is sent can make a receiver take more.
"""

from __future__ import annotations

import struct
from array import array
from base64 import b64decode, b64encode
from typing import Final

from data_prep.staging.table import pack, unpack

HEAD: Final = struct.Struct("!BI")
HAVE, WANT, CHUNK, MISS, BEAT = range(1, 6)
KINDS: Final = (HAVE, WANT, CHUNK, MISS, BEAT)
MOST_HAVE: Final = 16384


class PeerError(Exception):
    """The other node is gone, or says what no node of ours would say."""


class HungUp(PeerError):
    """The other end closed the connection: a node that is gone, or one to which too many have come."""


def frame(kind: int, number: int = 0) -> bytes:
    """The head of a frame."""
    return HEAD.pack(kind, number)


def have_frames(chunks: list[int]) -> bytes:
    """These chunks are here."""
    frames = []
    for start in range(0, len(chunks), MOST_HAVE):
        some = chunks[start : start + MOST_HAVE]
        frames.append(frame(HAVE, len(some)) + struct.pack(f"!{len(some)}I", *some))
    return b"".join(frames)


def parse_have(content: bytes, num_chunks: int) -> array[int]:
    """The chunks of a HAVE frame. Raises PeerError for a number that is none."""
    found = array("L", struct.unpack(f"!{len(content) // 4}I", content))
    if found and max(found) >= num_chunks:
        raise PeerError(f"it says that it has chunk {max(found)} of {num_chunks}")
    return found


def have_text(marks: bytearray) -> str:
    """Which chunks a node has, for its `listening` message; the usual cases are one word."""
    if not any(marks):
        return "none"
    return "all" if all(marks) else b64encode(pack(marks)).decode()


def parse_have_text(text: str, num_chunks: int) -> bytearray:
    """The inverse of `have_text`. Raises PeerError."""
    if text in ("none", "all"):
        return bytearray([text == "all"]) * num_chunks
    try:
        return unpack(b64decode(text, validate=True), num_chunks)
    except ValueError as error:
        raise PeerError(f"what it says to have does not fit the manifest: {error}") from error
