"""The rules: what they import and start exists. Snakemake finds out only when it starts, and no other check reads them."""

from __future__ import annotations

import importlib
import importlib.util
import re

import pytest

from tests.docs.test_docs import ROOT

FILES = [ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in FILES)
IMPORTS = re.findall(r"^from ((?:base|cluster|containers|data_prep|workflow)[\w.]*) import (.*)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("module", "names"), IMPORTS)
def test_what_rules_import_is_there(module: str, names: str) -> None:
    found = importlib.import_module(module)
    for name in names.split(","):
        assert hasattr(found, name.split(" as ")[0].strip()), f"{module}: {name}"


def test_what_rules_start_is_there() -> None:
    started = re.findall(r"\{PY\} ([\w.]+)", TEXT)
    assert len(started) > 3
    assert not [module for module in started if importlib.util.find_spec(module) is None]
