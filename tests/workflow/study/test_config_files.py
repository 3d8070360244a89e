"""The files in config/: current schemas, and examples that are valid by schema and by loader."""

import functools
import json

import jsonschema
import pytest

from cluster.installation import CONFIG
from workflow.study import schemas
from workflow.study.loader import read_document
from workflow.study.model import StudyFile
from workflow.study.site_file import SiteFile, read_site
from workflow.study.study import load_study


@functools.cache
def validator(model: type) -> jsonschema.Draft202012Validator:
    """By the schema of `model`; that it is one is a test below, that it is current one of docs.generate."""
    return jsonschema.Draft202012Validator(json.loads(schemas.schema_text(model)))


@pytest.mark.parametrize("model", [StudyFile, SiteFile])
def test_schemas_are_schemas_and_say_what_each_key_means(model: type) -> None:
    schema = json.loads(schemas.schema_text(model))
    jsonschema.Draft202012Validator.check_schema(schema)
    for definition in [schema, *schema["$defs"].values()]:
        assert definition["additionalProperties"] is False
        for name, key in definition["properties"].items():
            assert "description" in key, name


@pytest.mark.parametrize("name", ["study.yaml", "accuracy.yaml"])
def test_studies(name: str) -> None:
    document = read_document(CONFIG / name, "study")
    validator(StudyFile).validate(document.value)
    study = load_study(CONFIG / name, "local", {})
    assert study.cells
    assert study.notes == ()
    assert (CONFIG / name).read_text().startswith("# yaml-language-server: $schema=schemas/study.schema.json")


def test_sites() -> None:
    for path in (CONFIG / "sites").glob("*.yaml"):
        validator(SiteFile).validate(read_document(path, "site").value)
        assert read_site(path).name == path.stem
        assert "$schema=../schemas/site.schema.json" in path.read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [("study", "A"), ("limits", {"walltime": 3}), ("axes", {"nodes": 1}), ("zip", {}), ("base", {"threads": "all"}), ("nodes", 1)],
)
def test_the_schema_refuses_what_the_loader_refuses(key: str, value: object) -> None:
    study = {"study": "s", "datasets": {"d": {"source": "synthetic"}}, key: value}
    with pytest.raises(jsonschema.ValidationError):
        validator(StudyFile).validate(study)
