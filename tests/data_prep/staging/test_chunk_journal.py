from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.file_set import JOURNAL_NAME as NAME
from data_prep.staging.chunk_journal import Journal, parse_line

CHUNKS = {(0, 0), (0, 1), (0, 2), (1, 5), (3, 0), (3, 1)}


def written(directory: Path) -> bytes:
    journal = Journal(directory, "digest")
    journal.add(CHUNKS)
    journal.add([(7, 7)])
    journal.close()
    return (directory / NAME).read_bytes()


def found(directory: Path, digest: str = "digest") -> set[tuple[int, int]]:
    journal = Journal(directory, digest)
    journal.close()
    return journal.done


def test_what_was_added_is_found(tmp_path: Path) -> None:
    written(tmp_path)
    assert found(tmp_path) == CHUNKS | {(7, 7)}


def test_the_journal_of_another_dataset_counts_for_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    assert found(tmp_path, "another") == set()
    assert found(tmp_path) == set()


def test_every_cut_leaves_whole_lines_and_the_next_line_is_found(tmp_path: Path) -> None:
    content = written(tmp_path)
    before: set[tuple[int, int]] = set()
    for length in range(len(content) + 1):
        (tmp_path / NAME).write_bytes(content[:length])
        now = found(tmp_path)
        assert before <= now
        before = now
        (tmp_path / NAME).write_bytes(content[:length])
        journal = Journal(tmp_path, "digest")
        journal.add([(9, 9)])
        journal.close()
        assert found(tmp_path) == now | {(9, 9)}
    assert before == CHUNKS | {(7, 7)}


def test_a_flipped_bit_never_adds_a_chunk(tmp_path: Path) -> None:
    content = written(tmp_path)
    for bit in range(0, 8 * len(content), 7):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / NAME).write_bytes(damaged)
        assert found(tmp_path) <= CHUNKS | {(7, 7)}


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_line_or_none(line: bytes) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize("struck", [{(0, 1)}, {(7, 7), (0, 0)}, CHUNKS, {(8, 8)}, set()])
def test_what_is_struck_out_is_gone_for_good(tmp_path: Path, struck: set[tuple[int, int]]) -> None:
    written(tmp_path)
    journal = Journal(tmp_path, "digest")
    journal.strike(struck)
    journal.add([(8, 9)])
    journal.close()
    assert found(tmp_path) == (CHUNKS | {(7, 7), (8, 9)}) - struck
