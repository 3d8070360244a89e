"""A long text of each task through one `srun`: in pieces, because srun passes a line of more than 1024 bytes on in parts, with those of
other tasks between them (SLURM_IO_MAX_MSG_LEN; three tasks with lines of 4000 bytes, Slurm 22.05: a quarter of the lines were torn)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MARK: Final = "slipway-doctor"
PIECE: Final = 800
"""Characters, of ASCII, so that a line with mark, key and numbers stays below the limit."""


def to_lines(key: str, text: str) -> Iterator[str]:
    """`text`, one line of ASCII, as lines of its pieces. `key` names the task: no spaces."""
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    for number, piece in enumerate(pieces):
        yield f"{MARK} {key} {number} {len(pieces)} {piece}\n"


def from_lines(output: str) -> dict[str, str]:
    """Key -> text, of whatever else a step printed. A text of which a piece is missing is left out."""
    found: dict[str, dict[int, str]] = {}
    wanted: dict[str, int] = {}
    for line in output.split("\n"):
        words = line.split(" ", 4)
        if len(words) == 5 and words[0] == MARK and words[2].isdecimal() and words[3].isdecimal():
            found.setdefault(words[1], {})[int(words[2])] = words[4]
            wanted[words[1]] = int(words[3])
    return {key: "".join(pieces[n] for n in sorted(pieces)) for key, pieces in found.items() if sorted(pieces) == list(range(wanted[key]))}
