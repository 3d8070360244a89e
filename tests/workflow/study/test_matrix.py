"""From keys to cells: product, zip, include, exclude, identity, order."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError
from base.jsonfile import canonical_json
from containers.frameworks import framework_folders, load_framework
from containers.models import of_tokens
from tests.workflow.study.studies import changed, load
from workflow.dag.cell_needs import memory_of, model_of, requirements_of
from workflow.run.plan import describe_framework
from workflow.study.cell import LEFT_OUT, Cell, Run
from workflow.study.matrix import compile_expression
from workflow.study.model import CellKeys
from workflow.study.series import keys_not_in_ids, words_of
from workflow.study.study import Study

DIGITS = {"source": "sklearn-digits", "size": 32, "shards": 4}

EVERY_KEY = {
    **{"precision": "bf16", "comm_hook": "fp16", "layout": "nhwc", "device": "cpu", "threads": 2, "seed": 7},
    **{"optimizer": {"learning_rate": 1}, "steps": {"total": 100}, "save_parameters": False},
}


def shapes(study: Study) -> list[tuple[int, int, int]]:
    return [(cell.batch_size, cell.global_batch_size, cell.nodes) for cell in study.cells]


def ids(study: Study) -> set[str]:
    return {cell.cell_id for cell in study.cells}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]),
        (
            {"axes": {"batch_size": None, "global_batch_size": [64], "gpus_per_node": [1, 4]}},
            [(64, 64, 1), (16, 64, 1), (32, 64, 2), (8, 64, 2)],
        ),
        ({"include": [{"model": "lenet", "batch_size": 8}], "exclude": ["batch_size < 64"]}, [(64, 64, 1), (64, 128, 2), (8, 8, 1)]),
        ({"axes": None, "include": [{"model": "lenet", "batch_size": 8}]}, [(8, 8, 1)]),
        ({"axes": None, "base": {"model": "lenet", "batch_size": 8, "nodes": 3}}, [(8, 24, 3)]),
        ({"base": {"nodes": 9}, "axes": {"batch_size": [8]}}, [(8, 8, 1), (8, 16, 2)]),
    ],
    ids=["axes", "global batch", "include", "only include", "base alone", "axes override base"],
)
def test_cells_are_the_product_in_the_order_of_the_file_and_the_rows(
    tmp_path: Path, changes: dict[str, Any], expected: list[tuple[int, int, int]]
) -> None:
    study = load(tmp_path, changed(**changes))
    assert shapes(study) == expected
    assert [cell.world_size for cell in study.cells] == [total // batch for batch, total, _ in expected]


def test_a_row_has_the_values_of_base(tmp_path: Path) -> None:
    study = load(tmp_path, changed(base={"seed": 7}, include=[{"model": "lenet", "batch_size": 8}]))
    assert study.cells[-1].seed == 7
    assert study.results_dir == study.site.storage / "results" / "small"


def test_the_same_cell_has_one_identity_however_its_batch_is_written(tmp_path: Path) -> None:
    by_process = load(tmp_path, changed(axes={"batch_size": [32], "nodes": [2]}))
    by_total = load(tmp_path, changed(axes={"batch_size": None, "global_batch_size": [64], "nodes": [2]}))
    assert by_process.cells == by_total.cells


def test_zip_rows_are_crossed_with_the_axes(tmp_path: Path) -> None:
    study = load(
        tmp_path,
        changed(
            axes={"batch_size": None, "nodes": None, "seed": [0, 1]}, zip=[{"nodes": 1, "batch_size": 64}, {"nodes": 2, "batch_size": 32}]
        ),
    )
    assert [(*shape, cell.seed) for shape, cell in zip(shapes(study), study.cells, strict=True)] == [
        (64, 64, 1, 0), (32, 64, 2, 0), (64, 64, 1, 1), (32, 64, 2, 1),
    ]  # fmt: skip


def test_an_optimizer_is_completed_from_base_then_from_the_defaults_of_its_rule(tmp_path: Path) -> None:
    axis = [{"name": "adamw", "beta2": 0.95}, {"learning_rate": 1}, {"momentum": 0}]
    study = load(tmp_path, changed(base={"optimizer": {"momentum": 0.5}}, axes={"optimizer": axis}))
    assert [cell.optimizer for cell in study.cells[:3]] == [
        {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8},
        {"name": "sgd", "learning_rate": 1.0, "momentum": 0.5, "weight_decay": 0.0},
        {"name": "sgd", "learning_rate": 0.01, "momentum": 0.0, "weight_decay": 0.0},
    ]


def test_steps_have_a_total_and_epochs_stand_instead(tmp_path: Path) -> None:
    study = load(tmp_path, changed(axes={"steps": [{"measured": 20}, {"total": 100}]}))
    assert study.cells[0].steps == {"warmup": 10, "measured": 20, "total": 30}
    assert study.cells[1].steps == {"warmup": 10, "measured": 50, "total": 100}
    cell = load(tmp_path, changed(base={"epochs": 3})).cells[0]
    assert (cell.steps, cell.epochs) == (None, 3)


def test_expressions_name_every_key(tmp_path: Path) -> None:
    exclude = [
        "learning_rate > 1 or warmup > 10 or total > 60 or optimizer != 'sgd' or epochs == 3",
        "world_size not in [1, 2]",
        "dataset != 'digits'",
    ]
    study = load(tmp_path, changed(exclude=exclude))
    assert len(study.cells) == 4
    assert study.notes == tuple(f"exclude: {text!r} removes no cell" for text in exclude)


@pytest.mark.parametrize("source", ["folder", "list", "tar"])
def test_a_dataset_of_many_sizes_cannot_be_trained_on(tmp_path: Path, source: str) -> None:
    for encoding in ("raw", "jpeg"):
        study = changed(datasets={"photos": {"source": source, "path": "photos", "encoding": encoding}}, base={"dataset": "photos"})
        with pytest.raises(ConfigError, match=rf"study.yaml:\d+: datasets.photos: found no size, .* the {source} .*valid: size: 224"):
            load(tmp_path, study)
        study["datasets"]["photos"]["size"] = 32
        assert load(tmp_path, study).cells


@pytest.mark.parametrize("source", ["idx", "caffe-lmdb", "cifar"])
def test_some_sources_have_one_size_of_their_own(tmp_path: Path, source: str) -> None:
    assert load(tmp_path, changed(datasets={"photos": {"source": source, "path": "photos"}}, base={"dataset": "photos"})).cells


def test_an_unused_dataset_is_a_note(tmp_path: Path) -> None:
    study = load(tmp_path, changed(datasets={"photos": {"source": "folder", "path": "photos"}}))
    assert study.notes == ("no cell uses the dataset photos: nothing builds it",)
    assert study.datasets["photos"].path == str(tmp_path / "photos")


@pytest.mark.parametrize(
    "change",
    [
        {"study": "other"},
        {"base": {"repeats": 5}},
        {"limits": {"walltime": "1h"}},
        {"baseline": {"nodes": 2}},
        {"base": {"precision": "fp32", "seed": 0, "optimizer": {"name": "sgd", "momentum": 0.9}, "steps": {"warmup": 10, "total": 60}}},
        {"axes": {"nodes": [2, 1], "gpus_per_node": [1]}},
        {"datasets": {"digits": None, "renamed": DIGITS}, "base": {"dataset": "renamed"}},
        {"datasets": {"digits": {**DIGITS, "encoding": "raw", "channels": "grey", "resize": "squash"}}},
    ],
    ids=str,
)
def test_what_is_not_in_the_identity(tmp_path: Path, change: dict[str, object]) -> None:
    assert ids(load(tmp_path, changed(**change))) == ids(load(tmp_path, changed()))


def test_the_site_is_not_in_the_identity(tmp_path: Path) -> None:
    site = tmp_path / "other.yaml"
    site.write_text("storage: s\ncache: {path: c}\ndevice: cuda\nscheduler: slurm\nqueue: q\n")
    assert ids(load(tmp_path, changed(), str(site))) == ids(load(tmp_path, changed()))


@pytest.mark.parametrize(
    "change",
    [
        {"base": {"seed": 1}},
        {"base": {"optimizer": {"momentum": 0}}},
        {"base": {"steps": {"measured": 51}}},
        {"base": {"steps": {"total": 61}}},
        {"base": {"epochs": 1}},
        {"base": {"save_parameters": False}},
        {"base": {"threads": 1}},
        {"base": {"device": "cpu"}},
        {"base": {"mode": "infer"}},
        {"base": {"layout": "nhwc"}},
        {"base": {"gpus_per_node": 2}},
        {"datasets": {"digits": {**DIGITS, "splits": {"test": 0.2}}}},
    ],
    ids=str,
)
def test_what_is_in_the_identity(tmp_path: Path, change: dict[str, object]) -> None:
    assert not ids(load(tmp_path, changed(**change))) & ids(load(tmp_path, changed()))


def test_runs_are_blocks_by_repeat_shuffled_by_the_study(tmp_path: Path) -> None:
    study = load(tmp_path, changed(axes={"batch_size": [8, 16, 32, 64]}))
    blocks = [[run.run_id for run in study.runs if run.repeat == repeat] for repeat in (1, 2)]
    assert [run.run_id for run in study.runs] == blocks[0] + blocks[1]
    assert {run_id.removesuffix("-r1") for run_id in blocks[0]} == ids(study)
    assert [name.removesuffix("-r1") for name in blocks[0]] != [name.removesuffix("-r2") for name in blocks[1]]
    assert [run.run_id for run in load(tmp_path, changed(axes={"batch_size": [8, 16, 32, 64]})).runs] == [run.run_id for run in study.runs]
    other = load(tmp_path, changed(study="other", axes={"batch_size": [8, 16, 32, 64]}))
    assert [run.run_id for run in other.runs] != [run.run_id for run in study.runs]
    fewer = [run.run_id for run in load(tmp_path, changed(axes={"batch_size": [8, 16]})).runs]
    assert [run.run_id for run in study.runs if run.run_id in fewer] == fewer


def test_the_baseline_is_the_smallest_unless_stated(tmp_path: Path) -> None:
    assert load(tmp_path, changed(axes={"nodes": [4, 2]})).baseline == {"nodes": 2}
    assert load(tmp_path, changed(axes={"nodes": [4, 2], "gpus_per_node": [8, 4]})).baseline == {"nodes": 2, "gpus_per_node": 4}
    assert load(tmp_path, changed(baseline={"nodes": 2, "precision": "fp32"})).baseline == {"nodes": 2, "precision": "fp32"}


@pytest.mark.parametrize("model", of_tokens())
def test_token_ids_have_no_layout_that_a_framework_could_ask_for(tmp_path: Path, model: str) -> None:
    """Each that builds the network trains it in one study with the others, also those that have images in one layout only."""
    builds = [name for name in framework_folders() if model in load_framework(name).supports.models]
    text = {"source": "text", "path": str(tmp_path), "sequence_length": 16}
    study = load(tmp_path, changed(datasets={"digits": text}, axes={"model": [model], "batch_size": [32], "framework": builds}))
    assert {cell.framework for cell in study.cells} == set(builds) >= {"pytorch", "tensorflow"}
    for cell in study.cells:
        assert describe_framework(cell, "cpu").name == cell.framework


def test_a_cell_holds_every_key_of_the_study_file() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(Cell)}
    assert set(fields) == {"cell_id", "dataset_spec", "parameters_file", "profile", *CellKeys.model_fields}
    own = ("parameters_file", "profile")
    given = {name: default for name, default in fields.items() if default is not dataclasses.MISSING and name not in own}
    assert given == {name: CellKeys.model_fields[name].default for name in given}


@pytest.mark.parametrize(
    ("changes", "cell_id"),
    [
        ({}, "lenet-digits-b64-n2-g1-92082a7f50"),
        ({"axes": {"batch_size": [32], "nodes": [1]}}, "lenet-digits-b32-n1-g1-c85f9513ff"),
        (
            {"base": {"optimizer": {"momentum": 0.5}, "precision": "bf16"}, "axes": {"batch_size": [32], "nodes": [1]}},
            "lenet-digits-b32-n1-g1-bf16-38f499d79f",
        ),
        ({"base": {"epochs": 3}}, "lenet-digits-b64-n2-g1-7f1ed16d35"),
        ({"base": EVERY_KEY}, "lenet-digits-b64-n2-g1-bf16-nhwc-fp16-cp-800b2836af"),
        ({"base": {**EVERY_KEY, "comm_hook": "none", "mode": "infer"}}, "lenet-digits-b64-n2-g1-infer-bf16-nhwc-c-c818f0d830"),
        ({"axes": {"batch_size": None, "global_batch_size": [64]}, "base": {"gpus_per_node": 2}}, "lenet-digits-b16-n2-g2-f9f754972c"),
    ],
)
def test_cells_have_the_names_they_always_had(tmp_path: Path, changes: dict[str, Any], cell_id: str) -> None:
    """Results of older versions are found by these names: whoever changes one loses them."""
    assert load(tmp_path, changed(**changes)).cells[-1].cell_id == cell_id


def test_cells_and_runs_are_found_by_the_beginning_of_their_names(tmp_path: Path) -> None:
    study = load(tmp_path, changed())
    assert study.cell("lenet-digits-b32-n2").nodes == 2
    assert study.run(study.runs[3].run_id) == study.runs[3]
    with pytest.raises(Exception, match="the names of 2 cells begin so: lenet-digits-b32-n1"):
        study.cell("lenet-digits-b32")
    with pytest.raises(Exception, match="did you mean 'lenet-digits-b64-n2"):
        study.cell("lenet-digits-b46-n2-g1-000")
    with pytest.raises(Exception, match="the names of 8 runs begin so"):
        study.run("lenet")


# Exclude expressions: what they say, and that they are no code.


CELL: Mapping[str, Any] = {"model": "lenet", "batch_size": 32, "nodes": 2, "save_parameters": True, "epochs": None}
NAMES = tuple(CELL)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model == 'lenet'", True),
        ("model != 'lenet'", False),
        ("model == 'lenet' and batch_size > 32", False),
        ("model == 'lenet' or batch_size > 32", True),
        ("not nodes < 2", True),
        ("1 <= nodes <= 2", True),
        ("1 < nodes < 2", False),
        ("batch_size in [16, 32]", True),
        ("batch_size not in (16, 32)", False),
        ("model in ['a', 'b']", False),
        ("save_parameters", True),
        ("save_parameters == true and not false", True),
        ("epochs == None", True),
        ("nodes > -1", True),
        ("nodes == 2.0", True),
        ("  (model == 'lenet'\n and nodes == 2)  ", True),
    ],
)
def test_values(text: str, expected: bool) -> None:
    assert compile_expression(text, NAMES)(CELL) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "__import__('os')",
        "model.upper() == 'A'",
        "model[0] == 'l'",
        "(lambda: 1)() == 1",
        "nodes is 2",
        "nodes == 1 if nodes else 2",
        "f'{nodes}' == '2'",
        "~nodes == 1",
        "nodes ** 99999 > 1",
        "*nodes",
        "{1: 2}",
        "'x'",
        "import os",
        "nodes == '\0'",
        "a" * 1025,
        "(" * 500 + "nodes" + ")" * 500,
        "\ud800 == 1",
    ],
)
def test_no_code(text: str) -> None:
    with pytest.raises(ConfigError):
        compile_expression(text, NAMES)


def test_kinds_are_compared_with_a_message() -> None:
    for text in ("model > 3", "-model == 1", "'a' in nodes"):
        with pytest.raises(ConfigError, match="different kinds"):
            compile_expression(text, NAMES)(CELL)


def test_the_network_is_that_of_the_window_that_is_read(tmp_path: Path) -> None:
    noise = {"source": "synthetic", "size": 40, "samples": 64, "classes": 2, "shards": 2}
    axes = {"model": ["lenet"], "batch_size": [8], "nodes": [1]}
    whole = load(tmp_path, changed(datasets={"digits": noise}, axes=axes))
    assert "crop_size" not in whole.cells[0].to_json()
    study = load(tmp_path, changed(datasets={"digits": noise}, axes={**axes, "crop_size": [24, 28, 40]}))
    cells = {cell.crop_size: cell for cell in study.cells}
    assert len({cell.cell_id for cell in (*study.cells, *whole.cells)}) == 4
    needs = requirements_of(study, "digits")
    for side, cell in cells.items():
        model, memory = model_of(cell, needs), memory_of(cell, needs)
        assert model is not None
        assert model.layers[0]["shape_out"] == [3, side, side]
        assert cell == Cell.from_json(cell.to_json())
        assert memory is not None
        assert memory.activation_bytes >= 8 * 4 * 3 * side * side
    assert model_of(whole.cells[0], needs) == model_of(cells[40], needs)


# Keys that came later are written only where a study has them: without, ids and files are those of earlier versions.


BEFORE = "90034bece44490fa9281b11566a678a3947ceacb0ef0cfe3ba856e6e7b0eea5a"
"""SHA-256 of the cells of SMALL as the version before these keys wrote them."""


def test_a_study_without_the_keys_is_written_as_before(tmp_path: Path) -> None:
    study = load(tmp_path, changed())
    assert hashlib.sha256(canonical_json([cell.to_json() for cell in study.cells])).hexdigest() == BEFORE
    stated = load(tmp_path, changed(base=dict(LEFT_OUT)))
    assert [cell.to_json() for cell in stated.cells] == [cell.to_json() for cell in study.cells]


def test_a_cell_with_the_keys_is_another_one_and_is_read_back(tmp_path: Path) -> None:
    plain = load(tmp_path, changed()).cells
    study = load(tmp_path, changed(axes={"input_gradient": [False, True], "nodes": [1], "batch_size": [32]}))
    off, on = study.cells
    assert off.cell_id in {cell.cell_id for cell in plain}
    assert on.cell_id not in {cell.cell_id for cell in plain}
    assert [cell.to_json().get("input_gradient") for cell in (off, on)] == [None, True]
    assert [Cell.from_json(cell.to_json()) for cell in study.cells] == list(study.cells)
    words = words_of(study.cells, study.site, 1)
    assert [words(Run(cell=cell, repeat=1)) for cell in study.cells] == [
        f"lenet, input gradient {value}, batch 32, 1 node" for value in ("False", "True")
    ]
    assert list(keys_not_in_ids(study.cells).values()) == ["input gradient False", "input gradient True"]


def test_a_program_may_be_told_to_choose_algorithms(tmp_path: Path) -> None:
    programs = {"mine": {"command": ["my-train"], "supports": {"conv_algorithm": ["auto", "measured"]}}}
    study = changed(programs=programs, base={"program": "mine", "conv_algorithm": "measured"}, axes={"model": None})
    assert {cell.conv_algorithm for cell in load(tmp_path, study).cells} == {"measured"}
