"""Cells that start from given parameters: what identifies them, what is refused, and that a run really starts from them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from base.errors import ConfigError
from containers.frameworks import load_framework
from tests.containers.frameworks.programs import why_not
from tests.workflow.report.builder import cell_result
from tests.workflow.study.studies import changed, load, write
from workflow.report.cells import series_words, varying
from workflow.study.cell import Cell
from workflow.study.series import keys_not_in_ids

ROOT = Path(__file__).parents[3]
SITE = "storage: storage\ncache: {path: cache}\nscheduler: local\nengine: bare\ndevice: cpu\ndeadline_margin: 2s\n"


def cells(folder: Path, parameters: Any, **base: Any) -> tuple[Cell, ...]:
    site = folder / "site.yaml"
    site.write_text(SITE)
    keys = {"base": {"parameters": parameters, **base}, "axes": {"batch_size": [8], "nodes": [1]}}
    return load(folder, changed(**keys), str(site)).cells


def test_the_seed_changes_no_id_and_the_digest_of_a_file_does(tmp_path: Path) -> None:
    (plain,) = cells(tmp_path, "seed")
    assert "parameters_file" not in plain.to_json()
    found = []
    for content in (b"one", b"two"):
        (tmp_path / "start.safetensors").write_bytes(content)
        (cell,) = cells(tmp_path, "start.safetensors")
        assert cell.parameters == "start.safetensors"
        assert cell.parameters_file == {"path": str(tmp_path / "start.safetensors"), "bytes": 3, "blake3": blake3(content).hexdigest()}
        assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell
        found.append(cell.cell_id)
    (tmp_path / "elsewhere.safetensors").write_bytes(b"two")
    (moved,) = cells(tmp_path, "elsewhere.safetensors")
    assert moved.cell_id == found[1], "the path is no part of what a cell is"
    assert len({plain.cell_id, *found}) == 3


def test_cells_are_told_apart_by_the_name_of_their_parameters_and_by_the_digest_where_two_files_have_one_name(tmp_path: Path) -> None:
    """In the words of a run, and in the labels of tables and plots."""
    found: list[Cell] = []
    for content, name in ((b"one", "start"), (b"two", "other"), (b"two", "start")):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
        found += cells(tmp_path, f"{name}.safetensors")
    digest = blake3(b"one").hexdigest()
    for group, expected in ((found[:2], "parameters start.safetensors"), (found[::2], f"parameters file {digest}")):
        assert keys_not_in_ids(group)[group[0].cell_id] == expected
        results = [cell_result(cell.to_json(), [0.1], series=cell.cell_id) for cell in group]
        assert series_words(results[0], varying(results)) == [expected]


def test_a_run_of_this_study_or_of_another_one_is_a_file_of_its_attempt(tmp_path: Path) -> None:
    for study, content in (("small", b"own"), ("other", b"another")):
        run = tmp_path / "storage" / "results" / study / "runs" / "lenet-r1"
        (run / "attempts" / "2").mkdir(parents=True)
        (run / "record.json").write_text(json.dumps({"attempt": 2}))
        (run / "attempts" / "2" / "parameters.safetensors").write_bytes(content)
    digests = [
        cell.parameters_file["blake3"] for name in ("lenet-r1", "other/lenet-r1") for cell in cells(tmp_path, name) if cell.parameters_file
    ]
    assert digests == [blake3(content).hexdigest() for content in (b"own", b"another")]
    (run / "attempts" / "2" / "parameters.safetensors").unlink()
    with pytest.raises(ConfigError, match="it has not trained well, or with save_parameters: false"):
        cells(tmp_path, "other/lenet-r1")


def test_what_is_no_file_is_refused_when_the_study_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a pipe"), ("device", "a device")):
        with pytest.raises(ConfigError, match=f"{name}.safetensors, which cannot be read: it is {kind}"):
            cells(tmp_path, f"{name}.safetensors")


@pytest.mark.parametrize("attempt", ["../../x", {"a": 1}, 0, 1.5, True, None])
def test_a_record_whose_attempt_is_no_number_is_named(tmp_path: Path, attempt: object) -> None:
    record = tmp_path / "storage" / "results" / "other" / "runs" / "lenet-r1" / "record.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"attempt": attempt}))
    with pytest.raises(ConfigError, match=f"{record}: attempt: found .*; expected a whole number from 1"):
        cells(tmp_path, "other/lenet-r1")


@pytest.mark.parametrize(
    ("parameters", "base", "words"),
    [
        ("missing.safetensors", {}, r"base.parameters: found .*missing.safetensors, which cannot be read: No such file"),
        ("missing-r1", {}, r"base.parameters: found 'missing-r1', and .* must have its result before they are planned"),
        (
            "pretrained/lenet.pt",
            {},
            r"base.parameters: found 'pretrained/lenet.pt', .*of a file only \.safetensors is read, as .*save_file",
        ),
        ("../x/missing-r1", {}, "base.parameters: .*valid: seed, a file that ends with .safetensors, or a run"),
        ("../missing-r1", {}, "base.parameters: .*valid: seed, a file that ends with .safetensors, or a run"),
        (
            "x.safetensors",
            {"framework": "caffe"},
            "base.parameters: .*found x.safetensors, which is only for frameworks that start from a file",
        ),
    ],
)
def test_what_cannot_be_started_from_is_refused_when_the_study_is_read(
    tmp_path: Path, parameters: str, base: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        cells(tmp_path, parameters, **base)


def test_the_programs_of_frameworks_that_can_are_tested() -> None:
    assert [name for name in ("pytorch", "jax", "tensorflow") if load_framework(name).supports.parameters] == ["pytorch", "jax"]


def slipway_run(folder: Path, study: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The records of a study that was run, by cell id."""
    path = write(folder, study, f"{name}.yaml")
    argv = [sys.executable, "-P", "-m", "workflow.commands.main", "run", str(path), "--site", str(folder / "site.yaml")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    records = (folder / "storage" / "results" / study["study"] / "runs").glob("*/record.json")
    return {record["cell"]["cell_id"]: record for record in map(json.loads, (path.read_text() for path in records))}


@pytest.mark.slow
def test_training_and_inference_start_from_what_another_study_has_trained(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SITE)
    datasets = {"digits": {"source": "sklearn-digits", "size": 32, "shards": 2, "splits": {"test": 0.2}}}
    base = {"dataset": "digits", "model": "lenet", "batch_size": 32, "repeats": 1, "steps": {"warmup": 1, "measured": 40}}
    first = slipway_run(tmp_path, {"study": "first", "datasets": datasets, "base": base}, "first")
    ((_, trained),) = first.items()
    run = f"first/{trained['run_id']}"
    keys = {**base, "parameters": run, "steps": {"warmup": 1, "measured": 2}}
    frameworks = ["pytorch", *([] if why_not("jax") else ["jax"])]
    kinds = [(2, "train", "lenet"), (1, "infer", "lenet"), (1, "train", "fcn5")]
    rows = [{"framework": name, "nodes": nodes, "mode": mode, "model": model} for name in frameworks for nodes, mode, model in kinds]
    second = slipway_run(tmp_path, {"study": "second", "datasets": datasets, "base": keys, "zip": rows}, "second")
    assert len(second) == len(rows)
    for record in second.values():
        cell, training = record["cell"], record["training"]
        assert cell["parameters_file"]["blake3"] == blake3(Path(cell["parameters_file"]["path"]).read_bytes()).hexdigest()
        if cell["model"] == "fcn5":
            assert record["status"] == "error"
            assert "the file of parameters is of another network: " in record["status_reason"]
        elif cell["mode"] == "infer":
            assert (record["status"], training["parameter_norm"]) == ("ok", pytest.approx(trained["training"]["parameter_norm"], rel=1e-6))
            assert training["eval"]["accuracy"] == trained["training"]["eval"]["accuracy"]
        else:
            assert record["status"] == "ok"
            assert training["losses"][0][1] < trained["training"]["losses"][0][1] / 2
