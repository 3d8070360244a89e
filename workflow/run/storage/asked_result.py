"""What is asked of a run: any result, or one that is later than the failed result that somebody saw. Pure; standard library only.

`RUN` asks for any, `RUN.after-3` for one after its third. Both stay true once they are: a start that comes too late, or twice, finds what
was asked for and trains nothing.
"""

from __future__ import annotations

import re
from typing import Final

SUFFIX: Final = r"(\.after-[1-9]\d*)?"
"""Of the regular expression of Snakemake's wildcard: workflow/rules/common.smk reads it."""
_ASKED: Final = re.compile(r"(?P<run>.*-r\d+?)(\.after-(?P<after>[1-9]\d*))?")


def asked_of(run_id: str, after: int = 0) -> str:
    """The text for a result of `run_id` later than number `after`; 0: any."""
    return f"{run_id}.after-{after}" if after else run_id


def parse_asked(text: str) -> tuple[str, int]:
    """(run id, number that the result must be later than). Text that is none of ours is a run id, which nobody will find."""
    found = _ASKED.fullmatch(text)
    return (found["run"], int(found["after"] or 0)) if found else (text, 0)
