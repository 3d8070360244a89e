"""docs/what-happens-when.md says what the code says: modules and tests exist, each time is that of the constant beside it."""

from __future__ import annotations

import errno
import functools
import importlib
import os
import re
from pathlib import Path

import pytest

from tests.docs.test_docs import CODE, ROOT, named_rows, read
from tests.syntax import syntax
from tests.test_packages import ROOMS
from workflow.run.record.outcome import TABLE

PAGE = "docs/what-happens-when.md"
HEADS = ("Who notices", "Written", "You see", "You type", "Code", "Tests")
FACTORS = {"s": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0, "%": 0.01}
CITED = re.compile(r"(\d[\d.,]*) (%|[a-z ]+?) \(`(\w+\.[A-Z][A-Z_]+)`\)")
PUT_IN = re.compile(
    r"\.\.\.|\b(?:n|local-)\d\b|\b\d[\dms.]*(?: s\b)?|\bRUN\b|\bSIG[A-Z]+|\bdocker\b|\btrain\b|: |\((?=state)|(?<=state )\w"
)
"""Numbers and times, names of nodes, runs, signals, engines and phases."""
SECTIONS = {text.splitlines()[0]: " ".join(text.split()) for text in re.split(r"^## ", read(PAGE), flags=re.MULTILINE)[1:]}
EACH_SECTION = pytest.mark.parametrize("name", SECTIONS)


def part(section: str, head: str) -> str:
    """What stands after a head, up to the next one."""
    return section.partition(f"- **{head}:**")[2].partition(" - **")[0]


def modules(section: str) -> dict[str, Path]:
    """The name before a constant's dot -> the module of this section that it means."""
    paths = [Path(word) for word in CODE.findall(part(section, "Code"))]
    found = {path.stem: path for path in paths}
    assert len(found) == len(paths), "two modules of one name: a constant's module would not be known"
    return found


@EACH_SECTION
def test_every_part_says_all_of_it_and_its_modules_exist(name: str) -> None:
    assert [head for head in HEADS if f"- **{head}:**" in SECTIONS[name]] == list(HEADS)
    found = modules(SECTIONS[name])
    assert found
    assert not sorted(str(path) for path in found.values() if not (ROOT / path).is_file())


@EACH_SECTION
def test_every_test_that_is_named_exists(name: str) -> None:
    named = CODE.findall(part(SECTIONS[name], "Tests"))
    assert named
    for word in named:
        file, _, function = word.partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), word


@EACH_SECTION
def test_every_time_is_that_of_its_constant(name: str) -> None:
    section = SECTIONS[name]
    places = modules(section)
    cited = CITED.findall(section)
    assert len(cited) == len(re.findall(r"`\w+\.[A-Z][A-Z_]+`", section)), "a constant without its value"
    for number, what, constant in cited:
        stem, _, key = constant.partition(".")
        module = importlib.import_module(".".join(places[stem].with_suffix("").parts))
        assert float(number.replace(",", "")) * FACTORS.get(what, 1.0) == pytest.approx(getattr(module, key)), constant


@EACH_SECTION
def test_no_time_stands_without_its_constant(name: str) -> None:
    bare = CODE.sub("", CITED.sub("", SECTIONS[name]))
    assert not re.findall(r"\d[\d.,]* (?:s|seconds|minutes|hours|days|%)(?:\W|$)", bare)


@functools.cache
def said() -> str:
    """All strings of the product, a line each, and of an f-string each of its parts."""
    modules = (syntax(path) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    texts = (text for module in modules for text in (*module.texts, *module.docs))
    return "\n".join([os.strerror(errno.ENOSPC), *(re.sub(r"%[sd]", "\0", text) for text in texts)])


def pieces(words: list[str]) -> int:
    """How few pieces these words fall into that each stand in a string of the product; one for each word that stands in none."""
    if not words:
        return 0
    longest = next((end for end in range(len(words), 0, -1) if " ".join(words[:end]) in said()), 1)
    alone = longest == 1 and len(words) > 1
    return 1 + alone + pieces(words[longest:])


@EACH_SECTION
def test_every_sentence_that_is_quoted_is_one_of_the_product(name: str) -> None:
    """Between what is put in, which are numbers, names and `...`, a quoted sentence has the words of at most two strings."""
    for quoted in CODE.findall(part(SECTIONS[name], "You see")):
        for fragment in PUT_IN.split(quoted):
            words = fragment.strip(" ,;.:()").split()
            assert quoted.startswith("slipway ") or pieces(words) <= 2, f"{quoted}: {fragment!r} stands nowhere"


@EACH_SECTION
def test_every_status_has_the_exit_code_that_is_said(name: str) -> None:
    ends = named_rows("docs/reference/errors.md")
    for status, code in re.findall(r"status `(\w+)`, exit (\d+)", SECTIONS[name]):
        assert status in TABLE
        assert code in re.findall(r"\d+", ends[status][2]), f"{status}: exit {code}"


def test_every_case_of_the_issue_has_its_part() -> None:
    text = " ".join(SECTIONS).lower()
    for word in ("dies", "hangs", "node is lost", "network", "walltime", "cancelled", "full", "disk of a node", "daemon", "-9", "registry"):
        assert word in text
    assert {"Two people start the same study", "The machine is rebooted"} <= set(SECTIONS)
