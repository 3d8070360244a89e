"""Make the JSON Schemas and the tables of docs/reference from the code: keys, commands, errors, tables and marks, the record, events.

`python -m docs.generate` writes config/schemas, and what stands in a page between `<!-- generated: WHAT OF -->` and `<!-- end -->`; with
`--check` it writes nothing and exits with 1 where a file is not current. The prose around these blocks is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from base import publish
from cluster.installation import SCHEMAS
from docs import commands, errors, fields, keys, tables
from workflow.run.record import schema
from workflow.study import schemas

PAGES: Final = Path(__file__).parent / "reference"
BLOCK: Final = re.compile(r"(<!-- generated: ([\w-]+) ([^\n]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
MAKERS: Final[Mapping[str, Callable[[str], str]]] = {
    "keys": keys.key_table,
    "fields": fields.field_table,
    "record": fields.record_table,
    "errors": errors.error_table,
    "ends": errors.end_table,
    "command": commands.section,
    "make": commands.make_table,
    "marks": tables.marks,
    "columns": tables.columns,
}


def page_text(page: str) -> str:
    """Return the page with every generated block made anew."""
    return BLOCK.sub(lambda found: found[1] + MAKERS[found[2]](found[3]) + found[4], page)


def files() -> Iterator[tuple[Path, str]]:
    """Yield every file that is made of the code, with its text."""
    yield SCHEMAS / "record.schema.json", schema.schema_text()
    for name, model in schemas.FILES.items():
        yield SCHEMAS / name, schemas.schema_text(model)
    for path in sorted(PAGES.glob("*.md")):
        yield path, page_text(path.read_text(encoding="utf-8"))


def main(arguments: Sequence[str]) -> int:
    """Write the files, or check them. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    check = parser.parse_args(arguments).check
    wrong = 0
    for path, text in files():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            sys.stderr.write(f"{path} is not what the code says; `make schemas` writes it\n")
            wrong = 1
        else:
            publish.publish(path, text.encode())
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
