"""Words of `ssh` (captured from OpenSSH 9.2), and what is said of them."""

from __future__ import annotations

import pytest

from base.errors import ConfigError
from cluster.ssh import transport_to
from cluster.ssh.openssh import advice_on, is_lost, needs_person

UNKNOWN = "No ED25519 host key is known for 10.0.0.2 and you have requested strict checking.\nHost key verification failed."
CHANGED = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nOffending ED25519 key in /home/anna/.ssh/known_hosts:1\n"
DENIED = "Unauthorised use is prohibited.\nroot@10.0.0.2: Permission denied (keyboard-interactive)."
NO_KEY = "root@10.0.0.2: Permission denied (publickey)."


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (UNKNOWN, "none is accepted unseen: type `ssh login` once"),
        (CHANGED, "Nothing was sent"),
        (DENIED, "`slipway remote login setup` in a terminal"),
        ("ssh: Could not resolve hostname login: Name or service not known", "no host is called login here"),
        ("ssh: connect to host login port 22: Connection refused", "the same command again goes on"),
        ("Bad configuration option: foo", "ssh to login failed"),
    ],
)
def test_a_refusal_says_what_to_type(said: str, expected: str) -> None:
    assert expected in advice_on("login", said)


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
        transport_to(host, "ssh")
