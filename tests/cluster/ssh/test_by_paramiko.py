"""Lines of known_hosts, and what `ssh -G` says."""

from __future__ import annotations

import pytest

from base.errors import RemoteError
from cluster.ssh.by_paramiko import is_about, parse_known
from cluster.ssh.openssh import by_name, parse_settings

SAID = """user anna
hostname login.example.org
port 2222
hostkeyalias cluster
identityfile /home/anna/.ssh/id_ed25519
identityfile /home/anna/.ssh/other
userknownhostsfile /home/anna/.ssh/known_hosts /home/anna/.ssh/known_hosts2
globalknownhostsfile /etc/ssh/ssh_known_hosts
proxyjump gate
"""


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        ("login.example.org", "login.example.org", True),
        ("a,login.example.org,b", "login.example.org", True),
        ("*.example.org", "login.example.org", True),
        ("*.example.org,!login.example.org", "login.example.org", False),
        ("[login.example.org]:2222", "[login.example.org]:2222", True),
        ("[l]ogin.example.org", "login.example.org", False),
        ("LOGIN.example.org", "login.example.org", True),
        ("|1|not|base64", "login.example.org", False),
        ("|1|x", "login.example.org", False),
    ],
)
def test_a_line_is_about_a_host(patterns: str, name: str, expected: bool) -> None:
    assert is_about(patterns, name) is expected


def test_a_hashed_name_is_found() -> None:
    import base64
    import hashlib
    import hmac

    salt = b"0" * 20
    digest = base64.b64encode(hmac.new(salt, b"login", hashlib.sha1).digest()).decode()
    assert is_about(f"|1|{base64.b64encode(salt).decode()}|{digest}", "login")
    assert not is_about(f"|1|{base64.b64encode(salt).decode()}|{digest}", "logout")


def test_a_mark_hides_no_other_line() -> None:
    text = "@cert-authority *.org ssh-ed25519 CA\n# login.org ssh-rsa NO\nlogin.org ssh-ed25519 KEY\n"
    text += "@revoked * ssh-rsa BAD\nlogin.org ssh-rsa BAD\n"
    known = parse_known([("file", text)], "login.org")
    assert known.keys == {("ssh-ed25519", "KEY")}
    assert known.authority == "file"
    assert parse_known([("file", text)], "login.net").authority is None


def test_the_users_configuration_is_read() -> None:
    found = parse_settings(SAID)
    assert (found.hostname, found.port, found.user, found.alias, found.proxy) == ("login.example.org", 2222, "anna", "cluster", "gate")
    assert found.identity_files == ("/home/anna/.ssh/id_ed25519", "/home/anna/.ssh/other")
    assert found.known_hosts == ("/home/anna/.ssh/known_hosts", "/home/anna/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")


def test_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(RemoteError, match="hostname"):
        parse_settings("usage: ssh ...")


def test_without_a_configuration_the_name_says_all() -> None:
    found = by_name("anna@login", "bert")
    assert (found.user, found.hostname, found.port, found.proxy) == ("anna", "login", 22, None)
    assert by_name("login", "bert").user == "bert"
