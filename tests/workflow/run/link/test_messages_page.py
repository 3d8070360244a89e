"""docs/messages.md says what the types of the messages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflow.run.link.messages import ORDERS, SAID
from workflow.run.link.messages_page import main, page


def test_the_page_is_current() -> None:
    assert main(["--check"]) == 0


def test_the_page_names_each_message_with_its_fields() -> None:
    text = page()
    sections = {section.split("`")[1]: section for section in text.split("\n### ")[1:]}
    for kinds in (SAID, ORDERS):
        for name, kind in kinds.items():
            assert name in sections
            listed = f"### `{name}` ({kind.__name__})\n\n{kind.__doc__.split()[0]}"
            assert listed in text
            place = text.index(listed)
            for field in kind.__struct_fields__:
                assert f"\n* `{field}`: " in text[place : text.index("\n### ", place)], (name, field)


def test_what_a_type_says_is_written_in_words() -> None:
    text = page()
    assert "* `facts`: `Facts`\n" in text
    assert "* `grant`: `Grant` or null. What the scheduler granted here" in text
    assert "* `ranks`: list of `RankState` (min_length: 1)\n" in text
    assert "* `cache_check_s`: `SomeSeconds` or null, may be left out. How long" in text
    assert "* `Port`: whole number from 1 to 65535\n" in text
    assert "`RankEnd`, `RankState` in" in text


def test_a_page_that_is_not_current_is_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "messages.md"
    assert main(["--check"], path) == 1
    assert "make schemas" in capsys.readouterr().err
    assert main([], path) == 0
    assert main(["--check"], path) == 0
