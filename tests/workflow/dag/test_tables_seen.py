"""Tables are of the study as it is, or of another version, whoever made them: told by what lies beside them."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.study.studies import changed, write
from workflow.dag.execution import Mode
from workflow.dag.graph import Graph
from workflow.dag.refusals import load_graph
from workflow.study.publishing import publish_resolved

pytestmark = pytest.mark.processes

MAIN = Mode()
MADE_S = 4_000_000_000  # later than any study.json of the test


def load(root: Path, mode: Mode | None = MAIN, **changes: Any) -> Graph:
    site = root / "site.yaml"
    site.write_text("storage: storage\ncache: {path: cache}\ndevice: cpu\n")
    return load_graph({"site": str(site)}, [write(root, changed(**changes))], root, {}, mode)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """records.parquet of a study that has run."""
    monkeypatch.chdir(tmp_path)
    graph = load(tmp_path, None)
    publish_resolved(graph.study)
    made = Path(graph.results_dir, "records.parquet")
    made.touch()
    os.utime(made, (MADE_S, MADE_S))
    return made


def test_tables_of_the_study_are_left(tmp_path: Path, tables: Path) -> None:
    assert load(tmp_path).outdated == []
    tables.unlink()
    assert load(tmp_path, baseline={"nodes": 2}).outdated == [], "Snakemake makes what is missing"


def test_after_another_baseline_tables_depend_on_a_new_file(tmp_path: Path, tables: Path) -> None:
    graph = load(tmp_path, baseline={"nodes": 2})
    assert graph.outdated == [f"{graph.outdated_dir}/{MADE_S * 10**9}"]
    assert Path(graph.outdated[0]).exists()
    assert tables.exists()


def test_who_makes_no_tables_does_not_look(tmp_path: Path, tables: Path) -> None:
    assert load(tmp_path, None, baseline={"nodes": 2}).outdated == []
    assert tables.exists()


def test_a_start_that_came_to_no_tables(tmp_path: Path, tables: Path) -> None:
    os.utime(tables, (1, 1))
    assert len(load(tmp_path).outdated) == 1


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"history": []}'])
def test_a_study_json_that_tells_nothing(tmp_path: Path, tables: Path, content: str | None) -> None:
    file = tables.parent / "study.json"
    file.unlink() if content is None else file.write_text(content)
    assert len(load(tmp_path).outdated) == 1
