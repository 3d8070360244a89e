"""Whatever a study or site file holds: a Study, or a ConfigError. Nothing else, and nothing slow."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from base.errors import ConfigError
from tests.workflow.study.studies import SMALL
from workflow.study.loader import parse_document
from workflow.study.matrix import compile_expression
from workflow.study.model import CellKeys, StudyFile
from workflow.study.site_file import read_site
from workflow.study.study import load_study

FUZZ = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "30")), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PARTS = ["nodes", "model", "'a'", "1", "-1", ".", "lambda", *"== != < in not and or ( ) [ ] , ~ is if :".split()]  # noqa: SIM905
WORDS = st.sampled_from(["lenet", "digits", "1", "no", "12:30:00", "../x", "$(x)", "a\nb", "", "nodes > 1", "1e3", "auto", "sgd", "30m"])
CELL_KEYS = tuple(CellKeys.model_fields)
SCALARS = st.none() | st.booleans() | st.integers(-2, 70) | st.floats() | WORDS | st.text(max_size=8)
KEYS = st.sampled_from([*CELL_KEYS, *StudyFile.model_fields, "source", "size", "splits", "test", "path"]) | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=10)


def message_or_none(path: Path) -> str | None:
    try:
        load_study(path, "local", {})
    except ConfigError as error:
        return str(error)
    return None


@FUZZ
@given(st.text(alphabet=st.sampled_from(list("ab:1- \n[]{}&*!|>'\"%@`,?#\t\\.x~")) | st.characters(), max_size=60))
def test_any_text(text: str) -> None:
    try:
        parse_document(text, Path("f"), "study")
    except ConfigError:
        return


@FUZZ
@given(st.binary(max_size=40))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load_study(path, "local", {})
    with pytest.raises(ConfigError):
        read_site(path)


@FUZZ
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from(list(StudyFile.model_fields)), VALUES, st.booleans())
def test_any_values(tmp_path: Path, extra: dict[str, Any], key: str, value: Any, as_yaml: bool) -> None:
    study = {**SMALL, **({key: {**extra}} if value is None else {key: value})}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study, allow_unicode=True) if as_yaml else json.dumps(study), errors="replace")
    message = message_or_none(path)
    assert message is None or message.startswith(str(path))


@FUZZ
@given(st.sampled_from(CELL_KEYS), st.lists(SCALARS, max_size=3), st.sampled_from(["axes", "base", "zip", "include", "baseline"]))
def test_any_cell_key(tmp_path: Path, key: str, values: list[Any], part: str) -> None:
    filled: Any = {key: values} if part == "axes" else {key: values[0] if values else None}
    study = json.loads(json.dumps(SMALL))
    study[part] = [filled] if part in ("zip", "include") else {**study.get(part, {}), **filled}
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study))
    message = message_or_none(path)
    assert message is None or message.startswith(str(path))


@FUZZ
@given(st.lists(st.sampled_from(PARTS), max_size=12))
def test_any_expression(words: list[str]) -> None:
    try:
        compile_expression(" ".join(words), ("nodes", "model"))({"nodes": 1, "model": "lenet"})
    except ConfigError:
        return
