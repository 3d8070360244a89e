"""Prove that one knows a token without sending it: each side hashes the other's fresh challenge with it.

What is asked and said here comes from whoever connects: any text at all is answered, none is an error.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

TOKEN_BYTES: Final = 32


def new_token() -> bytes:
    """32 random bytes, for one attempt."""
    return secrets.token_bytes(TOKEN_BYTES)


def new_challenge() -> str:
    """64 hex digits, never used again."""
    return secrets.token_hex(TOKEN_BYTES)


def proof(token: bytes, role: str, challenge: str) -> str:
    """What only a holder of `token` can say, in a role such as `supervisor` or `node-<index>`, to `challenge`: 64 hex digits."""
    return hmac.new(token, f"{role}\0{challenge}".encode(errors="backslashreplace"), "sha256").hexdigest()


def proves(token: bytes, role: str, challenge: str, said: str) -> bool:
    """Whether `said` is that proof."""
    return said.isascii() and hmac.compare_digest(proof(token, role, challenge), said)


def derived(token: bytes, use: str) -> bytes:
    """Another token for one `use` of the same attempt: who learns it does not know `token`."""
    return hmac.new(token, f"derive\0{use}".encode(), "sha256").digest()
