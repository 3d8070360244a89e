"""Make the JSON Schemas of study and site file from the models, so that editors complete keys and mark wrong values.

`python -m workflow.study.schemas` writes config/schemas; with `--check` it says whether they are current (exit 1 if not).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from base.field_docs import without_links
from base.publish import publish
from cluster.installation import SCHEMAS
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


def outdated(folder: Path = SCHEMAS) -> list[Path]:
    """Return the files in `folder` that differ from the models."""
    return [folder / name for name, model in FILES.items() if _content(folder / name) != schema_text(model)]


def main(arguments: Sequence[str]) -> int:
    """Write the schemas, or check them. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.study.schemas", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    check = parser.parse_args(arguments).check
    for path in outdated():
        if check:
            sys.stderr.write(f"{path} is not what the models say; `make schemas` writes it\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            publish(path, schema_text(FILES[path.name]).encode())
    return int(check and bool(outdated()))


def _content(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
