"""Make the JSON Schemas of study and site file from the models, so that editors complete keys and mark wrong values.

`python -m docs.generate` writes them to config/schemas.
"""

import json
from typing import Any, Final

from pydantic import BaseModel

from base.field_docs import without_links
from containers import frameworks, models
from workflow.study.model import StudyFile
from workflow.study.site_file import SiteFile

FILES: Final[dict[str, type[BaseModel]]] = {"study.schema.json": StudyFile, "site.schema.json": SiteFile}
WORDS: Final = {"model": sorted(models.MODELS), "framework": sorted(frameworks.NAMES)}


def schema_text(model: type[BaseModel]) -> str:
    """Return the JSON Schema of `model` as the text of a file."""
    schema = model.model_json_schema()
    definitions = schema["$defs"]
    for name, axis in definitions.get("Axes", {}).get("properties", {}).items():
        axis["description"] = definitions["CellKeys"]["properties"][name]["description"]
    definitions.get("Program", {}).pop("required", None)  # it may stand in the folder's framework.yaml, which an editor does not see
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_tidy(schema)}
    return json.dumps(schema, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _tidy(value: Any, key: str = "") -> Any:
    """Remove titles and null defaults, which say nothing to a reader, and list the names of models and frameworks."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    if key == "properties":
        return {name: _with_words(name, _tidy(item)) for name, item in value.items()}
    kept = {name: _tidy(item, name) for name, item in value.items() if not _noise(name, item)}
    if isinstance(kept.get("description"), str):
        kept["description"] = without_links(kept["description"])
    if "$ref" in kept:
        kept.pop("default", None)
    return kept


def _noise(name: str, item: Any) -> bool:
    return (name == "title" and isinstance(item, str)) or (name == "default" and item in (None, [], {}))


def _with_words(name: str, schema: Any) -> Any:
    if name not in WORDS:
        return schema
    words = {"enum": WORDS[name]}
    return {**schema, "items": words} if schema.get("type") == "array" else {**schema, **words}
