"""Two programs of one run prove to each other, at the ends of a connection, that they know its token. Pure: bytes in, bytes out.

Its words have fixed lengths, so a stranger can say no more than these. Who listens greets with HELLO and a challenge; who called answers
with its index, its purpose, its proof and a challenge of its own; the listener's welcome is its proof.
"""

from __future__ import annotations

import struct
from typing import Final

from base.challenge import new_challenge, proof, proves

HELLO: Final = b"slipway 1\n"
_ANSWER: Final = struct.Struct("!I16s64s64s")
_HEX: Final = 64
GREETING_BYTES: Final = len(HELLO) + _HEX
ANSWER_BYTES: Final = _ANSWER.size
WELCOME_BYTES: Final = _HEX
Words = bytes | bytearray


class NoProof(Exception):
    """The other end does not know the token, or is another program than it should be."""


class Handshake:
    """One side's secrets for one connection: the token, what it is used for, such as `preflight`, and the index of this node."""

    def __init__(self, token: bytes, use: str, me: int) -> None:
        self._token, self._use, self._me = token, use, me
        self._challenge = new_challenge()

    def greeting(self) -> bytes:
        """What a listener says first."""
        return HELLO + self._challenge.encode()

    def answer(self, greeting: Words, listener: int, purpose: str = "") -> bytes:
        """What who connects to the node `listener` says to its greeting. Raises NoProof."""
        if not greeting.startswith(HELLO):
            raise NoProof("what listens there is no program of a run")
        said = proof(self._token, self._role(purpose, self._me, listener), _text(greeting[len(HELLO) :]))
        return _ANSWER.pack(self._me, purpose.encode(), said.encode(), self._challenge.encode())

    def check_answer(self, answer: Words) -> tuple[int, str, bytes]:
        """Index and purpose of who connected, and the welcome to say to it. Raises NoProof."""
        index, *words = _ANSWER.unpack(answer)
        purpose, said, challenge = map(_text, words)
        purpose = purpose.rstrip("\0")
        if not proves(self._token, self._role(purpose, index, self._me), self._challenge, said):
            raise NoProof("it does not know the token")
        return index, purpose, proof(self._token, self._role(purpose, self._me, index), challenge).encode()

    def check_welcome(self, welcome: Words, listener: int, purpose: str = "") -> None:
        """Whether the listener knows the token too. Raises NoProof."""
        if not proves(self._token, self._role(purpose, listener, self._me), self._challenge, _text(welcome)):
            raise NoProof("it does not know the token")

    def _role(self, purpose: str, speaker: int, hearer: int) -> str:
        return f"{self._use} {purpose} {speaker} to {hearer}"


def _text(content: Words) -> str:
    return content.decode("latin-1")
