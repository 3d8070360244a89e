"""Tables `frameworks` and `framework-facts`."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from containers.frameworks import FRAMEWORKS, load_framework
from tests.workflow.report.builder import collected, failed, make_cell, make_record
from workflow.report.formats import to_csv
from workflow.report.table import Table
from workflow.report.tables import TABLES, facts_table


def shown(table: Table) -> list[list[str]]:
    return [[value.text for value in row] for row in table.rows]


def test_frameworks_by_networks_by_processes(tmp_path: Path) -> None:
    """TensorFlow lays out memory in another way, and is in the same table; nobody asked for resnet18 with Keras and JAX."""
    ours = {"pytorch": "nchw", "tensorflow": "nhwc", "keras": "nhwc", "jax": "nchw"}
    cells = [
        make_cell(framework=name, layout=layout, model=model, nodes=nodes, batch_size=32)
        for model in ("lenet", "resnet18")
        for name, layout in ours.items()
        for nodes in (1, 2)
        if not (model == "resnet18" and name in ("keras", "jax"))
    ]
    ended = [make_record(cell, step_s=0.1) for cell in cells[:-1]]
    table = TABLES["frameworks"](collected(tmp_path / "digits", [*ended, failed(cells[-1])], cells, repeats=1))
    assert [column.title for column in table.columns] == ["Model", "Framework", "Layout", "Batch", "1 process", "2 processes"]
    assert shown(table) == [
        ["lenet", "pytorch", "nchw", "32", "0.100 (320)", "0.100 (640)"],
        ["lenet", "tensorflow", "nhwc", "32", "0.100 (320)", "0.100 (640)"],
        ["lenet", "keras", "nhwc", "32", "0.100 (320)", "0.100 (640)"],
        ["lenet", "jax", "nchw", "32", "0.100 (320)", "0.100 (640)"],
        ["resnet18", "pytorch", "nchw", "32", "0.100 (320)", "0.100 (640)"],
        ["resnet18", "tensorflow", "nhwc", "32", "0.100 (320)", "oom"],
        ["resnet18", "keras", "nhwc", "32", "not in the study", "not in the study"],
        ["resnet18", "jax", "nchw", "32", "not in the study", "not in the study"],
    ]
    assert "median step, and behind it samples/s" in table.caption


def test_a_network_that_a_framework_has_not(tmp_path: Path) -> None:
    """As in a study of a version that had one more."""
    cells = [make_cell(model="lenet", framework="jax"), *(make_cell(model=model) for model in ("lenet", "older"))]
    table = TABLES["frameworks"](collected(tmp_path / "digits", [make_record(cell) for cell in cells], cells, repeats=1))
    assert [row[-1] for row in shown(table) if row[:2] == ["older", "jax"]] == ["not supported"]


def test_other_keys_make_rows_of_their_own_and_programs_are_not_crossed(tmp_path: Path) -> None:
    program = {"name": "gpt", "command": ["x"], "version": 1}
    cells = [make_cell(framework=name, batch_size=batch) for batch in (64, 32) for name in ("pytorch", "jax")]
    cells += [make_cell(framework="gpt", model="mine", program=program, batch_size=32)]
    table = TABLES["frameworks"](collected(tmp_path / "digits", [make_record(cell) for cell in cells], cells, repeats=1))
    assert [row[:3] for row in shown(table)] == [
        *(["lenet", name, batch] for batch in ("32", "64") for name in ("pytorch", "jax")),
        ["mine", "gpt", "32"],
    ]


def test_a_batch_that_a_row_of_dlbench_has_not(tmp_path: Path) -> None:
    cells = [make_cell(nodes=1, batch_size=32), make_cell(nodes=2, batch_size=64)]
    table = TABLES["dlbench"](collected(tmp_path / "digits", [make_record(cell, step_s=0.1) for cell in cells], cells, repeats=1))
    told = [row[-2:] for row in shown(table)]
    assert [[text.partition("(")[0] for text in row] for row in told] == [["0.100", "not in the study"], ["not in the study", "0.100"]]


def test_facts_of_all_frameworks_and_of_a_study(tmp_path: Path) -> None:
    rows = {row["framework"]: row for row in csv.DictReader(io.StringIO(to_csv(facts_table())))}
    others = ["dlib", "gensim", "mathematica", "neural-designer", "opennn", "singa"]
    assert list(rows) == [*FRAMEWORKS, *others]
    for row in (rows.pop(name) for name in others):
        assert (row["note"], row["version"], row["verified_by"]) == ("Slipway does not run it", "", "")
        assert row["licence"]
        assert row["sources"], "who says so"
        assert row["claimed_devices"]
    torch = rows["pytorch"]
    assert (torch["version"], torch["licence"], torch["verified_devices"]) == ("2.13.0", "BSD-3-Clause", "cpu, cuda")
    assert "cuda" in torch["claimed_devices"], "claimed, and in a column of its own"
    assert torch["verified_by"].startswith("tests/")
    for name, row in rows.items():
        verified = (facts := load_framework(name).facts) is not None and facts.verified is not None
        assert bool(row["verified_by"]) == verified
        assert all(words.why in row["missing"] for words in load_framework(name).missing)
        assert row["note"].startswith("never run by a test of ours") == (facts is not None and not verified)
    program = {"name": "gpt", "command": ["x"], "version": 1}
    cells = [make_cell(framework="jax"), make_cell(framework="jax", program=program), make_cell(framework="of-another-version")]
    of_study = TABLES["framework-facts"](collected(tmp_path / "digits", [make_record(cell) for cell in cells], cells, repeats=1))
    assert [row[0] for row in shown(of_study)] == ["jax"]
