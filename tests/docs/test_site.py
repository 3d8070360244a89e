"""The pages that a user reads are short: the prose of each part has a limit. The report of hard sentences finds what it is for."""

import re

import pytest

from docs.readability import DOCS, prose, reasons, sentences

LIMITS = {"tutorial": 8_000, "how-to": 16_000, "explanation": 16_000}
"""Bytes of prose of each part of the user's pages, 40,000 together: tables and code do not count."""


@pytest.mark.parametrize("part", LIMITS)
def test_the_users_pages_are_short(part: str) -> None:
    sizes = {page.name: len(prose(page.read_text(encoding="utf-8")).encode()) for page in (DOCS / part).rglob("*.md")}
    assert sum(sizes.values()) <= LIMITS[part], sizes


def test_prose_is_what_is_neither_code_nor_a_table() -> None:
    page = "# Head\n\nOne.\n\n```\ncode\n```\n\n| a | b |\n|---|---|\n\n````\n```\n````\n<!-- a note -->\nTwo `three`.\n"
    assert prose(page).split() == ["#", "Head", "One.", "Two", "`three`."]


def test_sentences_end_at_points_and_list_items() -> None:
    page = "# Head\n\nA run ends. It has\na [record](x.md). Then, e.g. this, more.\n- First item\n- `second` item\n"
    assert list(sentences(page)) == ["A run ends.", "It has a record.", "Then, e.g. this, more.", "First item", "`second` item"]


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("Of several cells, the first one counts.", "begins with"),
        ("Where two cells of one size would differ, each value is a line.", "begins with"),
        ("That is so in every run.", "needs the sentence before"),
        ("What goes by counts as training.", "begins with"),
        ("The run " + "and the next one " * 8 + "end.", "has 35 words"),
    ],
)
def test_a_hard_sentence_has_its_reason(sentence: str, reason: str) -> None:
    assert any(re.match(reason, found) for found in reasons(sentence)), reasons(sentence)


def test_a_plain_sentence_has_no_reason() -> None:
    assert not reasons("The supervisor writes the record of a run when its last process has ended.")


def test_a_word_of_the_index_leads_to_one_place() -> None:
    """The search shows the place of a word first, before pages that only have it somewhere."""
    found = [
        word for page in DOCS.rglob("*.md") for line in re.findall(r"<!-- index: (.*) -->", page.read_text()) for word in line.split(", ")
    ]
    assert {"oom", "out of memory", "walltime", "multi-node", "site file", "delete results", "notebook", "resume", "gpu"} <= set(found)
    assert sorted(found) == sorted(set(found))
    assert all(word == word.lower() for word in found), "the search looks for small letters"
