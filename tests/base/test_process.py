"""A program's answer: whole, with its input, and never more than there is room for."""

import os
import resource
from collections.abc import Iterator

import pytest

from base import process
from base.errors import SlipwayError
from base.process import MAX_BYTES, describe, first_line, last_lines, raise_file_limit, run


@pytest.mark.processes
def test_input_and_both_outputs_pass_whatever_their_size() -> None:
    text = "x" * 300_000
    result = run(["sh", "-c", "tee /dev/stderr"], timeout_s=60, stdin=text)
    assert (result.stdout, result.stderr) == (text, text)


@pytest.mark.processes
def test_a_program_that_does_not_want_its_input_is_heard_all_the_same() -> None:
    assert run(["sh", "-c", "exec <&-; echo done"], timeout_s=60, stdin="x" * 300_000).stdout == "done\n"


@pytest.mark.processes
def test_an_endless_answer_ends_early() -> None:
    with pytest.raises(SlipwayError, match="yes says more than 64 MiB and was ended"):
        run(["yes"], timeout_s=60)
    assert process.MAX_OUTPUT == 64 << 20


@pytest.mark.processes
def test_a_word_that_no_program_can_be_given_is_an_error() -> None:
    with pytest.raises(SlipwayError, match="cannot be started: embedded null byte"):
        run(["echo", "a\0b"], timeout_s=5)


@pytest.mark.processes
def test_bytes_that_are_no_text_reach_the_program_as_they_were() -> None:
    found = run(("od", "-An", "-tx1"), timeout_s=20.0, stdin="a\udcff\ud800é")
    assert found.stdout.split() == ["61", "ff", "3f", "c3", "a9"]


# The first line of a pipe whose other end may do anything.


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
    os.write(pipe[1], b"x" * (MAX_BYTES + 1))
    assert first_line(pipe[0], 5.0) == b"x" * MAX_BYTES


def test_the_end_of_the_pipe_ends_the_line() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"rest")
    os.close(writer)
    assert first_line(reader, 5.0) == b"rest"
    assert first_line(reader, 5.0) == b""
    os.close(reader)


@pytest.mark.processes
def test_run_reports_what_happened() -> None:
    result = run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=30)
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert describe(result) == "sh -c 'echo out; echo err >&2; exit 3' ended with 3\nerr"


@pytest.mark.processes
def test_run_names_a_missing_program_and_a_hanging_one() -> None:
    with pytest.raises(SlipwayError, match="no-such-program cannot be started: No such file"):
        run(["no-such-program"], timeout_s=5)
    with pytest.raises(SlipwayError, match=r"sleep 60 did not end within 0\.05 s"):
        run(["sleep", "60"], timeout_s=0.05)


def test_last_lines_skips_blank_ones() -> None:
    assert last_lines("a\n\nb\n \nc\n", 2) == "b\nc"


def test_a_process_may_open_as_many_files_as_its_hard_limit_says() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 200), before[1]))
    try:
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
