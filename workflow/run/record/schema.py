"""Make the JSON Schema from the types of a record. `python -m docs.generate` writes it to config/schemas/record.schema.json."""

import json

import msgspec

from base.field_docs import field_docs, without_links
from workflow.run.record import model


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
