"""A user of a number that this machine has no account of."""

from __future__ import annotations

import getpass
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from base.calls import call_limited
from base.errors import ConfigError
from base.system import account_environ, account_name, refuse_without_home

NUMBER = next(number for number in range(54321, 60000) if number not in {entry.pw_uid for entry in pwd.getpwall()})

pytestmark = pytest.mark.processes


def _as_nobody_s_number(environ: dict[str, str], then: str) -> Any:
    os.setuid(NUMBER)
    os.environ.clear()
    os.environ.update(environ)
    if then == "home":
        try:
            refuse_without_home(os.environ)
        except ConfigError as error:
            return str(error)
        return None
    os.environ.update(account_environ(os.environ))
    return getpass.getuser()


def asked(environ: dict[str, str], then: str) -> Any:
    return call_limited("as a number without an account", _as_nobody_s_number, environ, then, timeout_s=60)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


@needs_root
@pytest.mark.parametrize(
    ("environ", "name"), [({}, f"user{NUMBER}"), ({"USER": ""}, f"user{NUMBER}"), ({"USER": "anna"}, "anna"), ({"LOGNAME": "anna"}, "anna")]
)
def test_who_has_no_account_has_a_name(environ: dict[str, str], name: str) -> None:
    assert asked(environ, "name") == name


@needs_root
def test_who_has_neither_account_nor_home_is_told_what_to_set() -> None:
    assert asked({"HOME": "/tmp"}, "home") is None
    assert asked({"HOME": "/"}, "home").startswith(f"HOME is '/', where user {NUMBER} cannot write, and this machine has no account")
    said = asked({}, "home")
    assert f"no account of user {NUMBER}" in said
    assert f"HOME=/tmp/user{NUMBER}" in said


def test_schedulers_are_asked_by_number_and_not_by_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    assert account_name() == pwd.getpwuid(os.geteuid()).pw_name


def test_who_has_an_account_keeps_what_the_environment_says(tmp_path: Path) -> None:
    assert account_environ({}) == {}
    assert account_environ({"HOME": str(tmp_path)}) == {}
    refuse_without_home({})
