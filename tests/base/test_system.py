"""What the operating system tells: of users, among them one whom this machine does not know, and in its small files."""

import getpass
import os
import pwd
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from base.calls import call_limited
from base.errors import ConfigError
from base.system import (
    MAX_MACHINE_TEXT,
    account_environ,
    account_name,
    inaccessible_parent,
    machine_number,
    machine_text,
    now_at,
    refuse_without_home,
)

NUMBER = next(number for number in range(54321, 60000) if number not in {entry.pw_uid for entry in pwd.getpwall()})


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


@pytest.mark.processes
@needs_root
@pytest.mark.parametrize(
    ("environ", "name"), [({}, f"user{NUMBER}"), ({"USER": ""}, f"user{NUMBER}"), ({"USER": "anna"}, "anna"), ({"LOGNAME": "anna"}, "anna")]
)
def test_who_has_no_account_has_a_name(environ: dict[str, str], name: str) -> None:
    assert asked(environ, "name") == name


@pytest.mark.processes
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


# Whose directory is in the way of a path.


def _asked_by_another(path: str) -> str | None:
    os.setuid(NUMBER)
    return inaccessible_parent(path)


@pytest.mark.processes
@needs_root
def test_the_directory_that_is_not_ours_is_named_with_its_owner() -> None:
    with tempfile.TemporaryDirectory() as name:  # others come to none of pytest's
        place = Path(name)
        place.chmod(0o755)
        results = place / "results"
        results.mkdir(mode=0o700)
        study = str(results / "photos" / "study.json")
        found = call_limited("as another user", _asked_by_another, study, timeout_s=60)
        assert found == f"{results} belongs to root and has mode 0700"
        assert call_limited("as another user", _asked_by_another, str(place / "other" / "file"), timeout_s=60) is None


def test_nothing_is_in_our_own_way(tmp_path: Path) -> None:
    assert inaccessible_parent(str(tmp_path / "file")) is None


# Small files that tell of a machine: what is there, what is not, and what is something else.


@pytest.mark.parametrize(
    ("content", "text", "number"),
    [
        (b"17\n", "17", 17),
        (b" up \n", "up", None),
        (b"-1\n", "-1", None),
        (b"", "", None),
        (b"9" * 30, "9" * 30, None),
        (b"\xff\n", "\N{REPLACEMENT CHARACTER}", None),
        ("\u0665".encode(), "\u0665", None),
    ],
)
def test_a_text_stands_without_white_space_and_a_number_is_of_plain_digits(
    tmp_path: Path, content: bytes, text: str, number: int | None
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert machine_text(file) == text
    assert machine_number(str(file)) == number


def test_what_is_not_there_or_cannot_be_read_is_empty(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, tmp_path / "file" / "below"):
        assert machine_text(path) == ""
        assert machine_number(path) is None


def test_a_large_file_is_read_so_far(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (MAX_MACHINE_TEXT + 1))
    assert len(machine_text(tmp_path / "large")) == MAX_MACHINE_TEXT


def test_the_kernel_s_own_files_are_such() -> None:
    assert len(machine_text("/proc/sys/kernel/random/boot_id")) == 36
    assert (machine_number("/proc/sys/kernel/pid_max") or 0) > 100


def test_it_is_the_clock_of_the_file_system_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "before").touch()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    found = now_at(tmp_path)
    monkeypatch.undo()
    (tmp_path / "after").touch()
    assert (tmp_path / "before").stat().st_mtime <= found <= (tmp_path / "after").stat().st_mtime
    assert sorted(os.listdir(tmp_path)) == ["after", "before"]
