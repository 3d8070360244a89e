"""The handshake of two programs of one run."""

from __future__ import annotations

import random

import pytest

from base.handshake import ANSWER_BYTES, GREETING_BYTES, WELCOME_BYTES, Handshake, NoProof

TOKEN = b"t" * 32


def test_it_proves_both_sides_their_places_and_the_purpose() -> None:
    listener, caller = Handshake(TOKEN, "test", 1), Handshake(TOKEN, "test", 0)
    greeting, answer = listener.greeting(), caller.answer(listener.greeting(), 1, "ring 0")
    index, purpose, welcome = listener.check_answer(answer)
    assert (index, purpose) == (0, "ring 0")
    assert [len(greeting), len(answer), len(welcome)] == [GREETING_BYTES, ANSWER_BYTES, WELCOME_BYTES]
    caller.check_welcome(welcome, 1, "ring 0")
    for listener_index, other_purpose in ((2, "ring 0"), (1, "ring 1"), (1, "")):
        with pytest.raises(NoProof, match="token"):
            caller.check_welcome(welcome, listener_index, other_purpose)


def test_another_token_use_or_listener_is_no_proof() -> None:
    listener = Handshake(TOKEN, "test", 1)
    others = [(Handshake(b"x" * 32, "test", 0), 1), (Handshake(TOKEN, "another use", 0), 1), (Handshake(TOKEN, "test", 0), 2)]
    for other, wanted in others:
        with pytest.raises(NoProof, match="token"):
            listener.check_answer(other.answer(listener.greeting(), wanted))
    first = Handshake(TOKEN, "test", 0).answer(listener.greeting(), 1)
    with pytest.raises(NoProof, match="token"):
        Handshake(TOKEN, "test", 1).check_answer(first)  # said again to another challenge


def test_any_bytes_prove_nothing() -> None:
    rng = random.Random(1)
    listener = Handshake(TOKEN, "test", 1)
    for _ in range(300):
        with pytest.raises(NoProof):
            listener.check_answer(rng.randbytes(ANSWER_BYTES))
        with pytest.raises(NoProof):
            listener.check_welcome(rng.randbytes(WELCOME_BYTES), 0)
        with pytest.raises(NoProof, match="no program of a run"):
            listener.answer(rng.randbytes(GREETING_BYTES), 0)
