"""Make the tables of fields of files and events from the strings that stand after the fields of their types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import takewhile
from pkgutil import resolve_name
from typing import Any, Final, get_args, get_origin

import msgspec

from base.field_docs import field_docs
from base.typed import Closed
from docs.keys import value_words
from docs.markdown import code, table
from workflow.run.record import model
from workflow.run.record.schema import field_words

OWN: Final = ("RunRecord", "Preflight", "LoadOf", "Performance", "Training")
"""The types of a record that have a table of their own."""


def field_table(path: str) -> str:
    """Format the fields of the class at a path such as `data_prep.manifest:Shard`, with their defaults if people write them.

    A field without a string of its own is left out.
    """
    part = resolve_name(path)
    words = field_docs(part)
    if not issubclass(part, Closed):
        return table(["field", "meaning"], ([code([key]), text] for key, text in words.items()))
    defaults = {one.name: _default(one) for one in dataclasses.fields(part)}
    return table(["field", "default", "meaning"], ([code([key]), defaults[key], text] for key, text in words.items()))


def _default(field: dataclasses.Field[Any]) -> str:
    is_required = field.default is field.default_factory is dataclasses.MISSING
    return "required" if is_required else value_words(field.default)


def record_table(name: str) -> str:
    """Format the fields of a type of the record, and those of the objects in it whose types have no table of their own."""
    return table(["field", "unit or type", "meaning"], _rows(getattr(model, name)))


def _rows(part: type[model.Part], path: str = "") -> Iterator[list[str]]:
    """Yield the rows of a type. Fields without words of their own stand in the row of the field before them."""
    words = field_words(part.__name__)
    entries = {entry.encode_name: model.plain(entry.type) for entry in msgspec.structs.fields(part)}
    for key, kind in entries.items():
        if key not in words:
            continue
        after = list(entries)[list(entries).index(key) + 1 :]
        names = [key, *takewhile(lambda other: other not in words, after)]
        unit, _, meaning = words[key].partition("|")
        yield [code(f"{path}{name}" for name in names), unit.strip(), meaning.strip()]
        inner: Any = model.plain(get_args(kind)[0]) if get_origin(kind) is tuple else kind
        if isinstance(inner, type) and issubclass(inner, model.Part) and inner.__name__ not in OWN:
            yield from _rows(inner, f"{path}{key}{'' if inner is kind else '[]'}.")
