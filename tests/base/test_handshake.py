"""The handshake of two programs of one run."""

import logging
import random
import resource
import socket

import pytest

from base.handshake import (
    ANSWER_BYTES,
    GREETING_BYTES,
    PER_TURN,
    WELCOME_BYTES,
    Handshake,
    NoDescriptors,
    NoProof,
    PendingConnections,
    Refusals,
    accept_pending,
    listen,
    most_pending,
    new_challenge,
    new_token,
    proof,
    proves,
)

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
        with pytest.raises(NoProof, match="it sent no greeting of Slipway"):
            listener.answer(rng.randbytes(GREETING_BYTES), 0)


TOKEN = new_token()


@pytest.mark.parametrize("text", ["", "\ud800", "\0", "é" * 100, "\U0010ffff", "0" * 64, "x" * 1000000])
def test_any_text_is_asked_and_said_without_an_error(text: str) -> None:
    challenge = new_challenge()
    assert len(proof(TOKEN, text, text)) == 64
    assert not proves(TOKEN, "node-0", challenge, text)
    assert not proves(TOKEN, text, challenge, proof(TOKEN, "node-0", challenge))
    assert proves(TOKEN, text, text, proof(TOKEN, text, text))


def test_the_newest_stays_and_the_oldest_of_the_most_frequent_address_goes() -> None:
    pending: PendingConnections[int] = PendingConnections(3, clock=lambda: 0.0)
    for number in range(3):
        pending.add(number, "one")
    assert pending.surplus() is None
    pending.add(3, "another")
    assert pending.surplus() == 0
    pending.remove(0)
    pending.add(4, "one")
    assert pending.surplus() == 1
    pending.remove(1)
    for number in range(5, 50):
        pending.add(number, "one")
        surplus = pending.surplus()
        assert surplus not in (None, 3, number)
        assert surplus is not None
        assert pending.remove(surplus)
        assert not pending.remove(surplus)
    assert len(pending) == 3
    assert 3 in pending


def test_who_waits_too_long_is_found() -> None:
    now = [0.0]
    pending: PendingConnections[int] = PendingConnections(10, clock=lambda: now[0])
    for number in range(4):
        now[0] = float(number)
        pending.add(number, "one")
    assert pending.overdue(2.0) == [0, 1]
    assert list(pending) == [0, 1, 2, 3]


def test_refusals_are_a_line_per_second_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    now = [10.0]
    refusals = Refusals(logging.getLogger("test"), clock=lambda: now[0])
    for _ in range(1000):
        refusals.note("it was slow")
    now[0] = 10.9
    refusals.note("it was slow")
    now[0] = 11.0
    refusals.note("it was wrong")
    refusals.log()
    refusals.note("it was late")
    refusals.log()
    assert [record.getMessage() for record in caplog.records] == [
        "a connection was refused: it was slow",
        "1001 connections were refused, the last one: it was wrong",
        "a connection was refused: it was late",
    ]


def test_a_turn_takes_some_and_the_next_one_the_others() -> None:
    listener = listen("127.0.0.1", 10)
    knocking = [socket.create_connection(listener.getsockname()) for _ in range(PER_TURN + 3)]
    turns = [accept_pending(listener) for _ in range(3)]
    assert [len(turn) for turn in turns] == [PER_TURN, 3, 0]
    assert {host for turn in turns for _, host in turn} == {"127.0.0.1"}
    for connection in [listener, *knocking, *(one for turn in turns for one, _ in turn)]:
        connection.close()


def test_no_descriptor_is_no_room_and_who_knocks_goes_on_knocking() -> None:
    listener = listen("127.0.0.1", 1)
    knocking = socket.create_connection(listener.getsockname())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(NoDescriptors, match="Too many open files"):
            accept_pending(listener)
        assert most_pending() == 8
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ((connection, _),) = accept_pending(listener)
    for one in (listener, knocking, connection):
        one.close()
