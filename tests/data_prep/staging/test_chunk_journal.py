from pathlib import Path

from data_prep.file_set import JOURNAL_NAME as NAME
from data_prep.staging.chunk_journal import Journal

CHUNKS = {0, 1, 2, 15, 30}


def found(directory: Path, *more: int) -> set[int]:
    """What the journal lists, before `more` is added."""
    journal = Journal(directory, 32)
    journal.add(more)
    journal.close()
    return journal.done


def test_what_was_added_is_found_wherever_the_journal_was_cut(tmp_path: Path) -> None:
    """A part of a line that is left is no other chunk."""
    found(tmp_path, *sorted(CHUNKS))
    content = (tmp_path / NAME).read_bytes()
    assert found(tmp_path) == CHUNKS
    for length in range(len(content) + 1):
        (tmp_path / NAME).write_bytes(content[:length])
        before = found(tmp_path, 31)
        assert before <= CHUNKS
        assert before | {31} <= found(tmp_path) <= CHUNKS | {31}
    for damaged in (b"\0" * 100, b"-1\n", b"99999\n", b"journal of 0123 89abcdef\n0 1 01234567\n", b"\xff" * 10):
        (tmp_path / NAME).write_bytes(damaged)
        assert found(tmp_path, 31) == set()
        assert found(tmp_path) == {31}
