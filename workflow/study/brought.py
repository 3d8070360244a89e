"""Where `slipway remote` puts a study: each version of a study file has a directory named by its content, which never changes, so that a
running job keeps what it began with; and all versions of one file are the same file to those who ask whose the results are. Pure.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PLACE: Final = "studies"
DIGITS: Final = 32
VERSION: Final = re.compile(rf"(?P<of>.*/{PLACE}/[^/]+-[0-9a-f]{{12}})/[0-9a-f]{{{DIGITS}}}/(?P<file>[^/]+)", re.DOTALL)


def place_of(storage: Path, source: str, digest: str) -> Path:
    """The directory of one version. `source`: NAME-<12 hex digits>, which stands for the file on the laptop; `digest`: DIGITS of them."""
    return storage / PLACE / source / digest


def are_versions(one: str, other: str) -> bool:
    """Whether two paths are of versions of one file that was brought."""
    first, second = VERSION.fullmatch(one), VERSION.fullmatch(other)
    return first is not None and second is not None and first.groups() == second.groups()
