"""Measure how much prose a page has, and which of its sentences are hard to read.

    python -m docs.readability              one line for each page, and the sum of each part
    python -m docs.readability PAGE...      the hard sentences of these pages, each with its reason

The report decides nothing: a person reads the sentences that it lists. tests/docs/test_site.py holds the sizes to their limits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent
LONGEST: Final = 30
"""A sentence of more words than this one is hard to read."""
REASONS: Final = (
    ("begins with what should stand at its end", re.compile(r"(?:Of|Where|That of|Those of|What|Whether|Whoever|Beside|Likewise)\b")),
    ("has no subject of its own", re.compile(r"(?:So|And|Or|Nor|Not) (?!far\b)")),
    ("needs the sentence before it", re.compile(r"(?:That|Those|These|This|They|It) (?:is|are|was|were|has|have|does|do|holds|tells)\b")),
    ("uses an everyday word with a private meaning", re.compile(r".*\b(?:tells? of|told|stands? beside|meets?|goes by|what belongs to)\b")),
)
"""What makes a sentence hard, and the sign of it."""


def prose(text: str) -> str:
    """Return a page without its code, its tables and its comments."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("|")) + "\n"


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page: headings are none, and a list item begins a new one."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose(text))
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", plain):
        words = " ".join(paragraph.split())
        if not words.startswith("#"):
            yield from filter(None, re.split(r"(?<=[.?!:])\s+(?=[A-Z`*])", re.sub(r"^(?:[-*]|\d+\.) ", "", words)))


def reasons(sentence: str) -> list[str]:
    """Return why a sentence is hard to read, nothing for most."""
    plain = sentence.replace("*", "")
    found = [reason for reason, sign in REASONS if sign.match(plain)]
    length = len(plain.split())
    return [*found, f"has {length} words"] if length > LONGEST else found


def part(page: Path) -> str:
    """Return the part of the documents that a page belongs to, by its directory."""
    return page.relative_to(DOCS).parts[0] if page.parent != DOCS else "index"


def report() -> Iterator[str]:
    """Yield a line for each page, in bytes of prose and shares of sentences, and one for each part."""
    sums: dict[str, int] = {}
    yield f"{'page':44}{'prose':>9}{'sentences':>11}{'words each':>12}{'hard':>6}"
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        found = list(sentences(text))
        size = len(prose(text).encode())
        sums[part(page)] = sums.get(part(page), 0) + size
        each = sum(len(sentence.split()) for sentence in found) / max(len(found), 1)
        hard = sum(bool(reasons(sentence)) for sentence in found)
        yield f"{page.relative_to(DOCS)!s:44}{size:>9,}{len(found):>11}{each:>12.1f}{hard:>6}"
    yield "bytes of prose: " + ", ".join(f"{name} {size:,}" for name, size in sums.items())


def main(arguments: Sequence[str]) -> None:
    """Print the report, or the hard sentences of the pages that are named."""
    if not arguments:
        print(*report(), sep="\n")
    for name in arguments:
        for sentence in sentences(Path(name).read_text(encoding="utf-8")):
            for reason in reasons(sentence):
                print(f"{name}: {reason}: {sentence}")


if __name__ == "__main__":
    main(sys.argv[1:])
