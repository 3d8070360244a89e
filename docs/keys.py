"""Make the tables of keys of study file, site file and datasets from their models."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any, Final

from pydantic.fields import FieldInfo

from docs.markdown import code, table
from workflow.study import model, site_file, value_types

HUGE: Final = 10**9
"""A bound that only keeps numbers from growing without end, which nobody needs to read."""
PATTERNS: Final = {
    value_types.NAME_PATTERN: "name",
    value_types.DURATION_PATTERN: "duration",
    site_file.SIZE_PATTERN: "size",
    "^/": "absolute path",
}


def key_table(path: str) -> str:
    """Format the keys of the model at a path such as `workflow.study.model:Base`: key, type, default, meaning."""
    part = resolve_name(path)
    schema = part.model_json_schema()
    definitions = schema.get("$defs", {})
    rows = [
        [
            code([key]),
            kind := type_words(schema["properties"][key], definitions),
            default_words(field, kind),
            field.description or "",
        ]
        for key, field in part.model_fields.items()
        if part is not model.Base or key not in model.CellKeys.model_fields
    ]
    return table(["key", "type", "default", "meaning"], rows)


def default_words(field: FieldInfo, kind: str) -> str:
    """Format the default of a key."""
    if field.is_required():
        return "required"
    value = field.default
    if kind == "duration" and isinstance(value, int | float):
        return code([f"{value / 60:g}m" if value % 60 == 0 else f"{value:g}s"])
    return value_words(value)


def value_words(value: object) -> str:
    """Format a default as a file has it: no value, and one that has keys of its own, is a dash."""
    if isinstance(value, bool):
        return code([str(value).lower()])
    if isinstance(value, tuple | dict):
        return code([str(list(value) if isinstance(value, tuple) else value).replace("'", "")])
    if isinstance(value, str | int | float):
        return code([f"{value:g}" if isinstance(value, float) else value])
    return "-"


def type_words(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Format the type of a value by its JSON Schema."""
    if "$ref" in schema:
        return type_words(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        found = [type_words(one, definitions) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(found))
    if "const" in schema or "enum" in schema:
        return code(schema.get("enum", [schema.get("const")]))
    return _plain_type(schema, definitions)


def _plain_type(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    match schema.get("type"):
        case "boolean":
            return "`true`, `false`"
        case "integer" | "number" as kind:
            return number_words("whole number" if kind == "integer" else "number", schema)
        case "array":
            inner = type_words(schema["items"], definitions)
            return "list of " + re.sub(r"^(mapping|name|text|whole number)\b", r"\1s", inner)
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"mapping: name -> {type_words(schema['additionalProperties'], definitions)}"
        case "object":
            return "mapping"
        case _ if schema.get("format") == "regex":
            return "regular expression"
    return PATTERNS.get(schema.get("pattern", ""), "text")


def number_words(kind: str, schema: dict[str, Any]) -> str:
    """Format the range of a number."""
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = (None if bound is None or bound >= HUGE else bound for bound in (schema.get("maximum"), schema.get("exclusiveMaximum")))
    begin = f"above {above:g}" if above is not None else "" if least is None else f"{least:g}"
    if most is None and below is None:
        return f"{kind} {begin if above is not None else 'from ' + begin}" if begin else kind
    return f"{kind}, " + " to ".join(filter(None, (begin, f"below {below:g}" if below is not None else f"{most}")))
