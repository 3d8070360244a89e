"""The words of docs/explanation/concepts.md: a row for each that is ours, in order, with a module that exists and speaks of it."""

import re

from tests.docs.test_docs import CODE, ROOT, Rows, rows

PAGE = "docs/explanation/concepts.md"
WORDS = (
    "allocation archive attempt baseline cell chunk digest grant holder lease manifest margin mark pin preflight prevented repeat result"
    " run series share staging supervisor tag window"
)


def words() -> Rows:
    """The rows of the table of words."""
    return [row for row in rows(PAGE) if len(row) == 3][1:]


def test_the_words_that_are_ours_have_a_row_each_in_order() -> None:
    found = [row[0] for row in words()]
    assert found == sorted(set(found))
    assert {*WORDS.split(), "node lock", "node program"} <= set(found)


def test_each_word_is_explained_in_few_sentences_and_lives_in_a_module_that_exists() -> None:
    for word, meaning, where in words():
        assert meaning.endswith("."), word
        assert meaning.count(". ") <= 2, word
        places = CODE.findall(where)
        assert places, word
        for place in places:
            text = f"{place}\n{(ROOT / place).read_text(encoding='utf-8')}"  # "file set" is FileSet, or file_set, too
            assert re.search(rf"\b{word.replace(' ', '[ _-]?')}", text, re.IGNORECASE), f"{place} does not speak of {word!r}"


PRIVATE = ("manieth", "gone on", "go on from", "goes on from", "ladder", "taken up", '"So far."')
"""Phrases that a reader with English as a second language does not understand at first reading, once here and mended."""


def test_phrases_that_nobody_understands_do_not_come_back() -> None:
    rooms = ("base", "cluster", "containers", "data_prep", "workflow", "install", "docs")
    files = [path for room in rooms for suffix in ("py", "md", "smk") for path in (ROOT / room).rglob(f"*.{suffix}")]
    assert len(files) > 300
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in files}
    found = [f"{path}: {phrase}" for path, text in texts.items() for phrase in PRIVATE if phrase in text]
    assert not found
