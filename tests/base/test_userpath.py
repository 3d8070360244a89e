"""Paths that people write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from base.humanize import absolute_path


@pytest.mark.parametrize(
    ("base", "words"), [("a\nb", "control character"), (os.fsdecode(b"a\xffb"), r"'/x/a\\\\xffb/storage' is not UTF-8"), ("aé b'$x", None)]
)
def test_what_lies_above_a_relative_path_counts_too(base: str, words: str | None) -> None:
    """A traceback of Snakemake and of LMDB, in a directory whose name is not UTF-8."""
    if words is None:
        assert absolute_path("storage", Path("/x", base)) == Path("/x", base, "storage")
        return
    with pytest.raises(ValueError, match=words):
        absolute_path("storage", Path("/x", base))
