"""Make the JSON Schema from the types of a record.

`python -m workflow.run.record.schema` writes config/schemas/record.schema.json; with `--check` it exits with 1 if that is not current.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from base import publish
from base.field_docs import field_docs, without_links
from cluster.installation import SCHEMAS
from workflow.run.record import model

SCHEMA_FILE: Final = SCHEMAS / "record.schema.json"


def schema_text() -> str:
    """Return the JSON Schema as the text of its file."""
    schema = msgspec.json.schema(model.RunRecord)
    for name, part in schema["$defs"].items():
        if name != model.Provenance.__name__:
            part["additionalProperties"] = False
        for key, words in field_words(name).items():
            part["properties"][key]["description"] = without_links(words.partition(" | ")[2] or words)
    text = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1, ensure_ascii=False, sort_keys=True)
    return text + "\n"


def field_words(name: str) -> dict[str, str]:
    """Return the words that stand after each field of a type, as `unit or type | meaning`, by the field's key."""
    part = getattr(model, name, None)
    if not (isinstance(part, type) and issubclass(part, model.Part)):
        return {}
    words = field_docs(part)
    return {entry.encode_name: words[entry.name] for entry in msgspec.structs.fields(part) if entry.name in words}


def main(arguments: Sequence[str]) -> int:
    """Write the schema, or check it. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.record.schema", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    options = parser.parse_args(arguments)
    if SCHEMA_FILE.exists() and SCHEMA_FILE.read_text(encoding="utf-8") == schema_text():
        return 0
    if options.check:
        sys.stderr.write(f"{SCHEMA_FILE} is not what the model says; `make schemas` writes it\n")
        return 1
    publish.publish(SCHEMA_FILE, schema_text().encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
