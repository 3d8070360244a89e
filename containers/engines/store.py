"""How an engine that keeps images, and containers beyond a job's end, in a store of its own differs from the others that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Store:
    """Of one engine."""

    where: Callable[[Mapping[str, str]], str]
    """Pure: in an environment, whom its client talks to, for messages."""
    local_names: str
    """What it puts before the name of an image that came from no registry."""
    root: str
    """In `info --format`: where it keeps its images."""
    unpacks_in_root: bool
    """Whether a load needs room in the root a second time; otherwise in TMPDIR."""
    pull: Callable[[str, Path | None], tuple[str, ...]]
    """Pure: the words after the client's name that fetch a reference, with credentials as `credentials` gives them."""
    save_format: Callable[[str], tuple[str, ...]]
    """Pure: the options of `save` that give an archive of this form."""
    credentials: Callable[[Path], AbstractContextManager[Path]]
    """The user's file of credentials, as `pull` wants it."""
