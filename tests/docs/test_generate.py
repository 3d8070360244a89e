"""The pages of reference are what the code says, and leave nothing out."""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from pydantic import BaseModel

from base.field_docs import field_docs
from data_prep.spec import SplitPath
from docs import generate
from docs.commands import commands
from docs.keys import type_words
from tests.workflow.report.builder import plausible_records, scaling_cells, write_records, write_study
from workflow.report.analysis import analyse
from workflow.report.collect import collect
from workflow.report.meanings import COLUMNS, meaning
from workflow.report.study_tables import all_tables
from workflow.study.model import Axes, StudyFile
from workflow.study.programs import CudaOnly, LogEvents
from workflow.study.site_file import SiteFile

PAGES = {path.name: path.read_text(encoding="utf-8") for path in generate.PAGES.glob("*.md")}
WITHOUT_TABLE = {Axes, CudaOnly, LogEvents, SplitPath}
"""Models of one or a few keys, which the row of the key that has them describes."""

WITHOUT_WORDS = {"time", "monotonic_ns", "folder"}
"""Fields that every event has, and what the reader of framework.yaml adds."""


def test_a_change_of_a_generated_block_is_noticed() -> None:
    page = PAGES["study-file.md"]
    assert generate.page_text(page) == page
    changed = page.replace("| `repeats` | whole", "| `runs` | whole")
    assert changed != page
    assert generate.page_text(changed) == page


def test_all_files_are_current_and_a_missing_schema_is_noticed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert generate.main(["--check"]) == 0
    monkeypatch.setattr(generate, "SCHEMAS", tmp_path)
    assert generate.main(["--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert generate.main([]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record.schema.json", "site.schema.json", "study.schema.json"]


def nested(annotation: Any) -> Iterator[type[BaseModel]]:
    """Models inside an annotation, and in their fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from nested(field.annotation)
    for inner in typing.get_args(annotation):
        yield from nested(inner)


@pytest.mark.parametrize(("page", "model"), [("study-file.md", StudyFile), ("site-file.md", SiteFile)])
def test_every_model_has_a_table(page: str, model: type[BaseModel]) -> None:
    paths = {f"{one.__module__}:{one.__qualname__}" for one in nested(model) if one not in WITHOUT_TABLE}
    assert len(paths) > 5
    text = PAGES[page] + PAGES["datasets.md"]
    assert not {path for path in paths if f"<!-- generated: keys {path} -->" not in text}


def test_every_command_has_its_section() -> None:
    sections = re.findall(r"<!-- generated: command (.*) -->", PAGES["commands.md"])
    assert sorted(name for section in sections for name in section.split(", ")) == sorted(commands())


@pytest.mark.parametrize("block", sorted(set(re.findall(r"<!-- generated: fields (\S+) -->", "".join(PAGES.values())))))
def test_every_field_of_a_type_has_its_words(block: str) -> None:
    part = resolve_name(block)
    assert typing.get_type_hints(part).keys() - field_docs(part).keys() <= WITHOUT_WORDS


def test_every_column_of_every_table_has_a_meaning(tmp_path: Path) -> None:
    cells = scaling_cells(model=["lenet"], nodes=[1, 2])
    results = write_study(tmp_path / "results" / "s", cells)
    write_records(results, plausible_records(cells))
    made = {table.name: table for table in all_tables(analyse(collect([results])))}
    sections = re.findall(r"^### ([\w-]+)\n\n.+?\n\n<!-- generated: columns \1 -->", PAGES["tables.md"], re.MULTILINE | re.DOTALL)
    assert sections == list(COLUMNS) == list(made)
    for table in made.values():
        assert not [column.key for column in table.columns if not meaning(table.name, column.key)], table.name
    assert meaning("precision", "bf16_nhwc_ratio_low") == "lower end of the interval of `bf16_nhwc_ratio`"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 10**9}, "whole number from 1"),
        ({"type": "integer", "minimum": 1, "maximum": 1024}, "whole number, 1 to 1024"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number, above 0 to 1"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "list of `a`, `b`"),
        ({"anyOf": [{"const": "auto"}, {"type": "number"}, {"type": "null"}]}, "`auto` or number"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "mapping: name -> text"),
    ],
)
def test_types_are_told_in_words(schema: dict[str, Any], words: str) -> None:
    assert type_words(schema, {}) == words
