"""Words of `ssh` (captured from OpenSSH 9.2), and what is said of them."""

import shlex
import subprocess

import pytest

from base.errors import ConfigError
from cluster.ssh import MAX_LINE, PLAIN, BoundaryFilter, OpenSsh, advice_on, is_lost, needs_person, remote_line

UNKNOWN = "No ED25519 host key is known for 10.0.0.2 and you have requested strict checking.\nHost key verification failed."
DENIED = "Unauthorised use is prohibited.\nroot@10.0.0.2: Permission denied (keyboard-interactive)."
NO_KEY = "root@10.0.0.2: Permission denied (publickey)."


def test_a_refusal_says_what_to_type() -> None:
    assert "`ssh login` in a terminal must work first" in advice_on("login", UNKNOWN)
    assert advice_on("login", UNKNOWN).endswith(UNKNOWN)
    assert "the same command again goes on" in advice_on("login", "ssh: connect to host login port 22: Connection refused")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("ssh: connect to host login port 22: No route to host", True),
        ("Timeout, server login not responding.", True),
        ("kex_exchange_identification: Connection closed by remote host", True),
        (UNKNOWN, False),
        (DENIED, False),
        (f"Connection closed\n{NO_KEY}", False),
    ],
)
def test_what_passes_by_itself_is_told_from_what_does_not(said: str, expected: bool) -> None:
    assert is_lost(said) is expected


def test_a_person_is_needed_for_a_second_factor_alone() -> None:
    assert needs_person(DENIED)
    assert not needs_person(NO_KEY)
    assert not needs_person(UNKNOWN)


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "a\nb"])
def test_an_option_or_a_sentence_is_no_host(host: str) -> None:
    with pytest.raises(ConfigError, match="no host"):
        OpenSsh(host)


# The line that a login shell gets, and its answer among what that shell says.


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
    said = bytearray()
    after = BoundaryFilter("word-1", said.extend)
    after.take(done.stdout)
    assert said == "".join(f"{word}|" for word in HOSTILE).encode(errors="surrogateescape")
    assert after.noise == b"hello\n"
    assert done.stderr == b"\nword-1\n"


@pytest.mark.parametrize("argv", [[], ["a", "b\0c"], ["x" * MAX_LINE + "y"]])
def test_what_no_program_can_get_is_refused(argv: list[str]) -> None:
    with pytest.raises(ValueError, match="argv|arguments"):
        remote_line(argv, "word")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_the_boundary_is_found_wherever_it_is_cut(size: int) -> None:
    said = b"Last login: \nslipway\n\nword-1\nfirst\n\nword-1\nsecond"
    heard = bytearray()
    after = BoundaryFilter("word-1", heard.extend)
    for at in range(0, len(said), size):
        after.take(said[at : at + size])
    assert heard == b"first\n\nword-1\nsecond"
    assert after.noise == b"Last login: \nslipway\n"


def test_without_the_boundary_all_is_noise_and_bounded() -> None:
    heard = bytearray()
    after = BoundaryFilter("word-1", heard.extend)
    for _ in range(100):
        after.take(b"x" * 10_000)
    assert not heard
    assert not after.seen
    assert len(after.noise) == BoundaryFilter.MAX_NOISE
