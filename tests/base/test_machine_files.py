"""Small files that tell of a machine: what is there, what is not, and what is something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from base.system import MAX_MACHINE_TEXT, machine_number, machine_text


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
