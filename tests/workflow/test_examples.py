"""The studies of examples/ and of `slipway init`, run as a user runs them, on two nodes of this machine."""

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from shutil import which
from typing import get_args

import pytest

from base import humanize
from base.process import CODE_ROOT
from tests.containers.frameworks.programs import why_not
from tests.workflow.gallery import STEPS, together
from workflow.commands import init
from workflow.report.collect import read_records
from workflow.study.study import load_study

pytestmark = pytest.mark.slow
EXAMPLES = {path.parent.name: path for path in sorted((CODE_ROOT / "examples").glob("*/study.yaml"))}
ON_A_GPU = {"dali": "nvidia-dali-cuda120"}
"""Those that need a GPU, and the package that they ask for there."""
PACKAGES = {"huggingface": "transformers", "lightning": "lightning"}
"""What an example asks for beside torch."""
FRAMEWORKS = {"jax": ["jax"], "keras": ["keras"], "frameworks": ["jax", "tensorflow", "keras"]}
"""Those in whose environments its programs run."""
WHOLE = ["lines"]
"""CI runs it as it is; of the others a few steps on two nodes, all in one study. The script of `ddp` is that of a template."""
SHORTENED = [name for name in EXAMPLES if name not in WHOLE]
TEMPLATES = [name for name in get_args(init.Template) if name != "images"]
"""Of the studies of `slipway init` the first runs as it is, and the others in the same one."""
SITE = "storage: storage\ncache: {path: cache}\nscheduler: local\nengine: bare\ndevice: cpu\n"


def missing(example: str) -> str | None:
    """The reason to skip it; None: all that it needs is here."""
    if example in ON_A_GPU and which("nvidia-smi") is None:
        return "there is no GPU here (nvidia-smi is not on PATH)"
    if example in ON_A_GPU and ON_A_GPU[example] not in {one.name for one in distributions()}:
        return f"{ON_A_GPU[example]} is not installed here: pip install {ON_A_GPU[example]}"
    if example in PACKAGES and importlib.util.find_spec(PACKAGES[example]) is None:
        return f"{PACKAGES[example]} is not installed: requirements-slow.txt has it"
    return next((reason for name in FRAMEWORKS.get(example, ()) if (reason := why_not(name)) is not None), None)


@pytest.mark.parametrize("example", [*WHOLE, *(pytest.param(name, marks=pytest.mark.long) for name in SHORTENED)])
def test_an_example_gives_its_table(example: str, tmp_path: Path) -> None:
    if (reason := missing(example)) is not None:
        pytest.skip(reason)
    study, site = EXAMPLES[example], tmp_path / "site.yaml"
    site.write_text(SITE)
    chosen = load_study(study, str(site), {})
    done = slipway("run", study, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes" in done.stdout
    (results,) = (tmp_path / "storage" / "results").iterdir()
    rows = read_records(results / "records.parquet").frame.to_dicts()
    assert [row["status"] for row in rows] == ["ok"] * len(chosen.runs)
    assert {row["nodes"] for row in rows} == {1, 2}
    assert {row["num_measured_steps"] for row in rows} == {100}
    if example != "lines":  # a program in awk, of which nobody knows the parameters
        assert {(row["nodes"], row["checksum_ranks"], *row["ranks_apart"]) for row in rows} == {(1, 1), (2, 2)}
    if len({cell.framework for cell in chosen.cells}) > 1:
        check_they_are_the_same(study, tmp_path, len(chosen.cells) - 2)


def test_a_new_study_gives_its_table(tmp_path: Path) -> None:
    """As it is written, but each cell runs once and for fewer steps."""
    init.main(str(tmp_path))
    study = tmp_path / "study.yaml"
    study.write_text(study.read_text().replace("repeats: 3", "repeats: 1").replace("measured: 100}", "measured: 20}"))
    done = slipway("run", study, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes" in done.stdout
    rows = read_records(tmp_path / "storage" / "results" / humanize.slug(tmp_path.name) / "records.parquet").frame.to_dicts()
    assert [(row["status"], row["num_measured_steps"]) for row in rows] == [("ok", 20)] * 2


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gallery.yaml, a study of TEMPLATES and those of SHORTENED for which everything is here, beside its site and what its runs on two
    nodes left."""
    place = tmp_path_factory.mktemp("gallery")
    (place / "site.yaml").write_text(SITE)
    for name in TEMPLATES:
        init.main(str(place / name), name)  # type: ignore[arg-type]
    new = [place / name / "study.yaml" for name in TEMPLATES]
    study = together([*new, *(EXAMPLES[name] for name in SHORTENED if missing(name) is None)], nodes=2)
    (place / "gallery.yaml").write_text(json.dumps(study, indent=1))
    done = slipway("run", place / "gallery.yaml", place, "--until", "collect")
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.mark.parametrize("example", [*SHORTENED, *TEMPLATES])
def test_an_example_trains_a_few_steps_on_two_nodes(example: str, gallery: Path) -> None:
    if (reason := missing(example)) is not None:
        pytest.skip(reason)
    cells = load_study(gallery / "gallery.yaml", str(gallery / "site.yaml"), {}).cells
    own = [cell.cell_id for cell in cells if (cell.framework if cell.program else cell.dataset).startswith(f"{example}_")]
    records = read_records(gallery / "storage" / "results" / "gallery" / "records.parquet").frame.to_dicts()
    columns = ("status", "nodes", "num_measured_steps", "checksum_ranks", "ranks_apart")
    rows = [tuple(row[column] for column in columns) for row in records if row["cell_id"] in own]
    assert rows == [("ok", 2, STEPS["measured"], 2, [])] * len(own), "the ranks trained one network together, and have told it"
    assert rows
    if example == "frameworks":
        check_they_are_the_same(gallery / "gallery.yaml", gallery, len(own) - 1)


def check_they_are_the_same(study: Path, place: Path, others: int) -> None:
    """As `slipway check-frameworks` finds: so many cells, beside those of PyTorch, have its losses."""
    checked = slipway("check-frameworks", study, place)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("the same") == others


def slipway(command: str, study: Path, place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it there, with the site that lies there."""
    argv = [sys.executable, "-m", "workflow.commands.main", command, str(study), "--site", str(place / "site.yaml"), *options]
    environ = {**os.environ, "PYTHONPATH": str(CODE_ROOT)}
    return subprocess.run(argv, cwd=place, env=environ, capture_output=True, text=True, check=False, timeout=1500)
