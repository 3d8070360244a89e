"""The first line of a pipe whose other end may do anything."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from base.process import MOST_BYTES, first_line


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reader and writer."""
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_a_line_comes_whole_without_what_follows(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"one\ntwo\n")
    assert first_line(pipe[0], 5.0) == b"one\n"


def test_who_never_writes_is_not_waited_for(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"half a line")
    with pytest.raises(TimeoutError, match=r"no line came within 0.1 s"):
        first_line(pipe[0], 0.1)


def test_a_line_without_end_is_cut(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x" * (MOST_BYTES + 1))
    assert first_line(pipe[0], 5.0) == b"x" * MOST_BYTES


def test_the_end_of_the_pipe_ends_the_line() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"rest")
    os.close(writer)
    assert first_line(reader, 5.0) == b"rest"
    assert first_line(reader, 5.0) == b""
    os.close(reader)
