"""A program's answer: whole, with its input, and never more than there is room for."""

from __future__ import annotations

import pytest

from base import process
from base.errors import SlipwayError
from base.process import run

pytestmark = pytest.mark.processes


def test_input_and_both_outputs_pass_whatever_their_size() -> None:
    text = "x" * 300_000
    result = run(["sh", "-c", "tee /dev/stderr"], timeout_s=60, stdin=text)
    assert (result.stdout, result.stderr) == (text, text)


def test_a_program_that_does_not_want_its_input_is_heard_all_the_same() -> None:
    assert run(["sh", "-c", "exec <&-; echo done"], timeout_s=60, stdin="x" * 300_000).stdout == "done\n"


def test_an_endless_answer_ends_early() -> None:
    with pytest.raises(SlipwayError, match="yes says more than 64 MiB and was ended"):
        run(["yes"], timeout_s=60)
    assert process.MAX_OUTPUT == 64 << 20


def test_a_word_that_no_program_can_be_given_is_an_error() -> None:
    with pytest.raises(SlipwayError, match="cannot be started: embedded null byte"):
        run(["echo", "a\0b"], timeout_s=5)


def test_bytes_that_are_no_text_reach_the_program_as_they_were() -> None:
    found = run(("od", "-An", "-tx1"), timeout_s=20.0, stdin="a\udcff\ud800é")
    assert found.stdout.split() == ["61", "ff", "3f", "c3", "a9"]
