"""The line that a login shell gets, and its answer among what that shell says."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from cluster.ssh.openssh import MAX_LINE, PLAIN, After, remote_line

HOSTILE = (
    "a b",
    "it's",
    '"q"',
    "new\nline",
    "$(id)",
    "`id`",
    "!x",
    "back\\slash",
    "",
    "*",
    "~",
    "ü",
    "\udcff",
    "-n",
    "%s",
    "a;b",
    "{a,b}",
    "^",
)


def test_only_plain_characters_travel_between_the_quotes() -> None:
    line = remote_line(["printf", *HOSTILE], "word-1")
    coded = line[line.rindex(" '") + 2 : -1]
    assert set(coded.encode()) <= PLAIN | set(b"\\")
    assert shlex.split(line)[-1] == coded


@pytest.mark.processes
@pytest.mark.parametrize("shell", [["/bin/sh"], ["/bin/bash"]])
def test_a_program_gets_every_word_as_it_is(shell: list[str]) -> None:
    line = remote_line(["printf", "%s|", *HOSTILE], "word-1")
    done = subprocess.run([*shell, "-c", f"echo hello; {line}"], capture_output=True, check=True)
    after = After("word-1")
    assert after.take(done.stdout) == "".join(f"{word}|" for word in HOSTILE).encode(errors="surrogateescape")
    assert after.noise == b"hello\n"
    assert done.stderr == b"\nword-1\n"


@pytest.mark.parametrize("argv", [[], ["a", "b\0c"], ["x" * MAX_LINE + "y"]])
def test_what_no_program_can_get_is_refused(argv: list[str]) -> None:
    with pytest.raises(ValueError, match="argv|arguments"):
        remote_line(argv, "word")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_the_boundary_is_found_wherever_it_is_cut(size: int) -> None:
    said = b"Last login: \nslipway\n\nword-1\nfirst\n\nword-1\nsecond"
    after = After("word-1")
    parts = [after.take(said[at : at + size]) for at in range(0, len(said), size)]
    assert b"".join(parts) == b"first\n\nword-1\nsecond"
    assert after.noise == b"Last login: \nslipway\n"


def test_without_the_boundary_all_is_noise_and_bounded() -> None:
    after = After("word-1")
    for _ in range(100):
        assert after.take(b"x" * 10_000) == b""
    assert not after.seen
    assert len(after.noise) == After.MOST
