"""What nodes say to each other while they stage the same dataset: a handshake of fixed length, then frames. Pure: bytes in, values out.

Who listens says HELLO and a challenge; who connects answers with its index, its proof and a challenge of its own; the listener proves
itself too. A frame is one byte of kind and four of a number: of a chunk, or for HAVE of how many chunk numbers follow. The bytes of a CHUNK
follow its frame, as many as the manifest says; nothing that is sent can make a receiver take more.
"""

from __future__ import annotations

import struct
from array import array
from base64 import b64decode, b64encode
from typing import Final

from base.challenge import new_challenge, proof, proves
from data_prep.staging.table import pack, unpack

HELLO: Final = b"slipway-chunks 1\n"
HEAD: Final = struct.Struct("!BI")
HAVE, WANT, CHUNK, MISS, BEAT = range(1, 6)
KINDS: Final = (HAVE, WANT, CHUNK, MISS, BEAT)
MOST_HAVE: Final = 16384
_HEX: Final = 64
GREETING_BYTES: Final = len(HELLO) + _HEX
ANSWER_BYTES: Final = 4 + 2 * _HEX
WELCOME_BYTES: Final = _HEX


class PeerError(Exception):
    """The other node is gone, does not know the token, or says what no node of ours would say."""


class HungUp(PeerError):
    """The other end closed the connection: a node that is gone, or one to which too many have come."""


class Handshake:
    """One side's secrets: node `me`, the token of this run's staging, the dataset's digest."""

    def __init__(self, token: bytes, digest: str, me: int) -> None:
        self._token, self._digest, self._me = token, digest, me
        self._challenge = new_challenge()

    def greeting(self) -> bytes:
        """What a listener says first."""
        return HELLO + self._challenge.encode()

    def answer(self, greeting: bytes, listener: int) -> bytes:
        """What who connects to the node `listener` says to its greeting. Raises PeerError."""
        if not greeting.startswith(HELLO):
            raise PeerError("what listens there is no node that stages")
        said = proof(self._token, self._role(self._me, listener), _text(greeting[len(HELLO) :]))
        return struct.pack("!I", self._me) + (said + self._challenge).encode()

    def check_answer(self, answer: bytes) -> tuple[int, bytes]:
        """The index of who connected, and what to say to it. Raises PeerError."""
        (index,) = struct.unpack_from("!I", answer)
        said, challenge = _text(answer[4 : 4 + _HEX]), _text(answer[4 + _HEX :])
        if not proves(self._token, self._role(index, self._me), self._challenge, said):
            raise PeerError("it does not know the token")
        return index, proof(self._token, self._role(self._me, index), challenge).encode()

    def check_welcome(self, welcome: bytes, listener: int) -> None:
        """Whether the listener knows the token too. Raises PeerError."""
        if not proves(self._token, self._role(listener, self._me), self._challenge, _text(welcome)):
            raise PeerError("it does not know the token")

    def _role(self, speaker: int, hearer: int) -> str:
        return f"chunks {self._digest} {speaker} {hearer}"


def _text(content: bytes) -> str:
    return content.decode("latin-1")


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
