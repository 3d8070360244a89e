"""Buffers for reads and writes past the page cache."""

import ctypes
import os
from pathlib import Path

import pytest

from data_prep.staging.files import BLOCK, HUGE_PAGE, aligned_buffer, open_file, read_into, whole_buffer, write_from


def flags(buffer: memoryview) -> set[str]:
    """The flags of the mapping that holds this memory, as the kernel shows them."""
    where = address(buffer)
    mapping = range(0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *words = line.split()
        if "-" in first:
            mapping = range(*(int(end, 16) for end in first.split("-")))
        elif first == "VmFlags:" and where in mapping:
            return set(words)
    return set()


def address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@pytest.mark.parametrize("num_bytes", [1, BLOCK, BLOCK + 1, HUGE_PAGE - BLOCK, HUGE_PAGE, HUGE_PAGE + 1, 2 * HUGE_PAGE])
def test_a_buffer_begins_with_a_page_and_is_found_again_from_its_front(tmp_path: Path, num_bytes: int) -> None:
    buffer = aligned_buffer(num_bytes)
    assert 0 <= len(buffer) - num_bytes < BLOCK
    assert address(buffer) % (HUGE_PAGE if num_bytes > HUGE_PAGE - BLOCK else BLOCK) == 0
    buffer[:] = os.urandom(len(buffer))
    again = whole_buffer(buffer[:1])
    assert (address(again), len(again)) == (address(buffer), len(buffer))
    descriptor = open_file(tmp_path / "file", os.O_RDWR | os.O_CREAT, direct=True)
    write_from(descriptor, buffer, 0)
    content = aligned_buffer(num_bytes)
    assert read_into(descriptor, content, len(content), 0) == len(content)
    os.close(descriptor)
    assert content == buffer


def test_a_large_buffer_may_have_huge_pages_and_no_child_gets_it() -> None:
    found = flags(aligned_buffer(2 * HUGE_PAGE))
    assert "dc" in found
    assert "hg" in found or not Path("/sys/kernel/mm/transparent_hugepage").exists()
    assert "dc" not in flags(aligned_buffer(BLOCK)), "this looks at the right mapping"
