"""Make the JSON Schema and the tables of docs/record.md from the types of a record, and validate records strictly.

`python -m workflow.run.record.schema` writes config/schemas/record.schema.json and the tables of docs/record.md; with `--check` it exits
with 1 if they are not current; with `--validate FILE...` it checks records, and refuses unknown keys too.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import msgspec

from base import errors, process, publish, seal
from cluster.installation import SCHEMAS
from workflow.run.record import model, reading

SCHEMA_FILE: Final = SCHEMAS / "record.schema.json"
PAGE: Final = process.CODE_ROOT / "docs" / "record.md"
_TABLE: Final = re.compile(r"<!-- fields of (\w+), .* -->\n(?:\|.*\n)*")


def schema_text() -> str:
    """Return the JSON Schema as the text of its file."""
    schema = msgspec.json.schema(model.RunRecord)
    for name, part in schema["$defs"].items():
        if name != model.Provenance.__name__:
            part["additionalProperties"] = False
        for key, words in _words_of(name).items():
            part["properties"][key]["description"] = words.partition(" | ")[2] or words
    text = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1, ensure_ascii=False, sort_keys=True)
    return text + "\n"


def page_text(page: str) -> str:
    """Return the page about the record with a table of fields after each line that names a type."""
    own = set(_TABLE.findall(page))
    head = "| field | unit or type | meaning |\n|---|---|---|\n"
    return _TABLE.sub(lambda found: found[0].partition("\n")[0] + "\n" + head + "".join(_rows(getattr(model, found[1]), own)), page)


def _rows(part: Any, own: Collection[str], path: str = "") -> Iterator[str]:
    """Yield the rows of a type, and those of the objects in it whose types have no table of their own. Fields without words of their own
    stand in the row of the field before them."""
    words = _words_of(part.__name__)
    entries = {entry.encode_name: model.plain(entry.type) for entry in msgspec.structs.fields(part)}
    for key, kind in entries.items():
        if key not in words:
            continue
        after = list(entries)[list(entries).index(key) + 1 :]
        alike = [key, *takewhile(lambda other: other not in words, after)]
        cells = (", ".join(f"`{path}{name}`" for name in alike), *words[key].split(" | ", 1))
        yield "|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n"
        inner = model.plain(get_args(kind)[0]) if get_origin(kind) is tuple else kind
        if isinstance(inner, type) and issubclass(inner, model.Part) and inner.__name__ not in own:
            yield from _rows(inner, own, f"{path}{key}{'' if inner is kind else '[]'}.")


@cache
def _source() -> dict[str, list[ast.stmt]]:
    module = ast.parse(Path(model.__file__).read_text(encoding="utf-8"))
    return {node.name: node.body for node in module.body if isinstance(node, ast.ClassDef)}


def _words_of(name: str) -> dict[str, str]:
    """Return the words that stand after each field of a type, as `unit or type | meaning`, by the field's key."""
    keys = {entry.name: entry.encode_name for entry in msgspec.structs.fields(getattr(model, name))} if name in _source() else {}
    found = {}
    for field_, words in pairwise(_source().get(name, [])):
        match field_, words:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[keys[name]] = " ".join(text.split())
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the schema and the tables of the page, or check them. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.record.schema", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    parser.add_argument("--validate", nargs="+", type=Path, metavar="FILE", help="check these records")
    options = parser.parse_args(arguments)
    if options.validate:
        return _validate(options.validate)
    wrong = 0
    for path, text in ((SCHEMA_FILE, schema_text()), (PAGE, page_text(PAGE.read_text(encoding="utf-8")))):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            sys.stderr.write(f"{path} is not what the model says; `make schemas` writes it\n")
            wrong = 1
        else:
            publish.publish(path, text.encode())
    return wrong


def _validate(paths: Sequence[Path]) -> int:
    wrong = 0
    for path in paths:
        try:
            reading.validate_record(seal.read_sealed(path), str(path))
        except errors.RecordError as error:
            sys.stderr.write(f"{error}\n")
            wrong += 1
    return errors.RecordError.exit_code if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
