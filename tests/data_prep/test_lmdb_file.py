"""What is said of an LMDB that cannot be read: closed to us, or damaged."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from data_prep.sources.lmdb_file import _died


@pytest.mark.parametrize(
    ("code", "errors", "words"),
    [
        (3, b"/d: Permission denied\n", "/d may not be read: /d: Permission denied; ask its owner"),
        (3, b"/d: MDB_INVALID: File is not an LMDB file\n", "/d is damaged or no LMDB: /d: MDB_INVALID"),
        (-7, b"", "/d is damaged or no LMDB: its reader died with SIGBUS"),
    ],
)
def test_what_may_not_be_read_is_not_damaged(code: int, errors: bytes, words: str) -> None:
    process = SimpleNamespace(communicate=lambda: (b"", errors), returncode=code)
    assert str(_died(Path("/d"), cast(Any, SimpleNamespace(process=process)))).startswith(words)
