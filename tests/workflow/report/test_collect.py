"""Directories -> rows: which attempt counts, what is missing, and that one bad record spoils nothing."""

import functools
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from base.errors import RecordError
from base.seal import sealed_text
from tests.workflow.report.builder import (
    CPU,
    GPU,
    analysed,
    failed,
    make_cell,
    make_record,
    scaling_cells,
    sealed_bytes,
    unsealed_bytes,
    write_records,
    write_study,
)
from tests.workflow.run.valid import validate_record
from workflow.report.analysis import analyse
from workflow.report.collect import collect, read_records
from workflow.report.collect import write_records as write_parquet
from workflow.report.record_reader import read_rows, read_runs
from workflow.run.record.parquet_columns import FIELDS
from workflow.run.record.reading import FoundRecord, find_record
from workflow.run.record.step_clock import STEPS
from workflow.study.cell import Cell

CELL = make_cell()
RUN = f"{CELL['cell_id']}-r1"


def study(tmp_path: Path, *records: dict[str, Any], cells: list[dict[str, Any]] | None = None, repeats: int = 1) -> Path:
    directory = write_study(tmp_path / "results" / "digits", cells or [CELL], repeats=repeats)
    write_records(directory, records)
    return directory


def only(directory: Path) -> dict[str, Any]:
    rows = collect([directory]).frame.to_dicts()
    assert len(rows) == 1
    return rows[0]


def of_an_older_version(record: dict[str, Any]) -> dict[str, Any]:
    """As records were when the rate was the global batch over the median step."""
    performance = record["performance"]
    newer = ("samples", "rate_to_median_ratio", "uneven_cause")
    return {**record, "performance": {key: value for key, value in performance.items() if key not in newer}}


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_an_older_record_gets_the_rate_of_the_wall_time_that_it_holds(tmp_path: Path, mode: str) -> None:
    """200 steps of 0.2 s with 8 samples each, and 60 s in all: its own 40 samples/s are those of the median step."""
    cell = make_cell(nodes=2, gpus_per_node=2, batch_size=2, mode=mode)
    changes = {"performance.window_s": 60.0, "performance.num_measured_steps": 200, "performance.straggler_rank": 1}
    record = of_an_older_version(make_record(cell, step_s=0.2, **changes))
    assert validate_record(record).performance is not None
    row = only(study(tmp_path, record, cells=[cell]))
    assert record["performance"]["samples_per_s"] == pytest.approx(40)
    assert (row["samples_per_s"], row["samples"]) == (pytest.approx(1600 / 60), 1600)
    assert row["rate_to_median_ratio"] == pytest.approx(2 / 3)
    assert (row["straggler_rank"], row["rank_skew_p95_ratio"]) == (None, None), "whoever ended its steps last is no straggler"
    (cell_found,) = analyse(collect([tmp_path / "results" / "digits"])).cells
    assert "uneven" in cell_found.marks


def test_the_rate_of_a_window_is_made_again_from_samples_and_wall_time(tmp_path: Path) -> None:
    """In training, where the record holds both; the sum over the ranks of inference is the record's."""
    changes = {"performance.window_s": 50.0, "performance.samples": 1000, "performance.samples_per_s": 77.0}
    train, infer = (make_record(make_cell(mode=mode), **changes) for mode in ("train", "infer"))
    timeless = make_record(make_cell(seed=1), **{"performance.window_s": 0.0})
    found = [train, infer, timeless]
    frame = collect([study(tmp_path, *found, cells=[record["cell"] for record in found])]).frame
    assert frame["samples_per_s"].to_list() == [pytest.approx(20), 77.0, None]


def test_a_record_becomes_a_row(tmp_path: Path) -> None:
    record = make_record(make_cell(nodes=2, gpus_per_node=2, batch_size=2, device="cuda"), step_s=0.1)
    row = only(study(tmp_path, record, cells=[record["cell"]]))
    assert row["status"] == "ok"
    assert row["samples_per_s"] == pytest.approx(80)
    assert (row["num_processes"], row["global_batch_size"], row["num_gpus"]) == (4, 8, 4)
    assert row["hardware"] == f"{GPU}, {CPU}"
    assert row["hosts"] == "node00,node01"
    assert sum(row[f"{step}_s"] for step in STEPS[2:]) == pytest.approx(row["run_s"])
    assert (row["staged_bytes"], row["copied_bytes"]) == (3_800_000, 0)
    assert json.loads(row["cell"]) == {**json.loads(row["cell"]), **record["cell"]}, "all keys of the study, and the defaults of others"


def test_every_column_comes_from_its_place_in_the_record() -> None:
    record = make_record(
        CELL, **{"failed_rank": {"rank": 1, "host": "h", "exit_code": 1, "signal": "SIGKILL", "last_lines": "x"}, "warnings": ["w"]}
    )
    record["cell"]["augmentation"] = "none"
    record = json.loads(sealed_text(record))
    frame = read_rows(
        [FoundRecord(run_id=RUN, path=f"{RUN}/record.json", content=sealed_text(record))], {RUN: Cell.from_json(record["cell"])}
    )
    for column, stored in FIELDS.items():
        value: Any = record
        for key in stored.path.split("."):
            value = (value or {}).get(key)
        expected = str(value).lower() if isinstance(value, bool) and column == "git_dirty" else value
        if column != "schema":
            assert frame[column].to_list() == [expected], column


def test_losses_are_not_columns_and_do_not_disturb_the_others(tmp_path: Path) -> None:
    last = make_record(CELL)
    training = last["training"]
    last["training"] = {
        **{key: value for key, value in training.items() if key != "losses"},
        "losses": training["losses"],
    }  # last of its object
    odd = make_record(CELL, 2, **{"training.losses": []})
    odd["warnings"] = ['says "losses": [[1, 2]] in words']
    write_records(directory := study(tmp_path, repeats=2), [last, odd])
    frame = collect([directory]).frame
    assert frame["status"].to_list() == ["ok", "ok"]
    assert frame["final_loss"].to_list() == [0.2, 0.2]
    assert frame["warnings"].to_list() == [[], odd["warnings"]]


@pytest.mark.parametrize(
    ("attempts", "status", "attempt"),
    [
        (["ok"], "ok", 1),
        (["oom", "ok"], "ok", 2),
        (["oom", "killed"], "oom", 1),  # the latest result, though a prevented attempt came after it
        (["killed", "node_lost"], "node_lost", 2),
        (["killed", "error", "preempted", "storage"], "error", 2),
        (["ok", "error"], "error", 2),
        ([], "missing", None),
    ],
)
@pytest.mark.parametrize("published", [True, False])
def test_the_latest_result_counts_else_the_latest_prevented(
    tmp_path: Path, attempts: list[str], status: str, attempt: int | None, published: bool
) -> None:
    records = [
        make_record(CELL, attempt=number) if end == "ok" else failed(CELL, status=end, attempt=number)
        for number, end in enumerate(attempts, 1)
    ]
    directory = study(tmp_path, *records)
    if not published:  # as Snakemake leaves it when it repeats a run
        (directory / "runs" / RUN / "record.json").unlink(missing_ok=True)
    row = only(directory)
    assert (row["status"], row["attempt"], row["num_attempts"]) == (status, attempt, len(attempts))


def test_a_result_that_was_pushed_but_not_published_yet_counts(tmp_path: Path) -> None:
    directory = study(tmp_path, failed(CELL, status="error"), make_record(CELL, attempt=2))
    old = (directory / "runs" / RUN / "attempts" / "1" / "record.json").read_bytes()
    (directory / "runs" / RUN / "record.json").write_bytes(old)
    assert (only(directory)["status"], only(directory)["attempt"]) == ("ok", 2)


def test_a_published_record_without_attempts_is_enough(tmp_path: Path) -> None:
    directory = study(tmp_path)
    run = directory / "runs" / RUN
    run.mkdir(parents=True)
    (run / "record.json").write_bytes(sealed_text(make_record(CELL)))
    assert only(directory)["status"] == "ok"
    assert find_record(str(run.parent), RUN).path == f"{RUN}/record.json"


@functools.cache
def torn(repeat: int) -> dict[str, bytes]:
    """Kind of damage -> what lies there instead of the record of this repeat."""
    record = make_record(CELL, repeat)
    text = unsealed_bytes(record)
    return {
        "empty": b"",
        "blank": b" \n\n ",
        "cut": text[:-40],
        "zeros": b"\0" * 4096,
        "zeros behind": text + b"\0" * 100,
        "a list": b"[1, 2]",
        "null": b"null",
        "text for a number": sealed_bytes({**record, "run_s": "long"}),
        "two in one": text + b"\n" + text,
        "not utf-8": text.replace(b"digits-scaling", b"\xff\xfe"),
        "deep": b'{"schema": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "NaN": sealed_bytes({**record, "run_s": float("nan")}),
        "no record": b'{"run_id": "x"}',
        "another schema": sealed_bytes({**record, "schema": "slipway.run/9"}),
        "another run": sealed_bytes(make_record(CELL, 2)),
        "another cell": sealed_bytes({**record, "cell": {**CELL, "global_batch_size": 64}}),
        "an unknown end": sealed_bytes({**record, "status": "fine"}),
        "a kind that contradicts": sealed_bytes({**record, "kind": "prevented"}),
        "no time at all": sealed_bytes(make_record(CELL, repeat, **{"performance.step_s": {"n": 1, "p50": 0.0}})),
        "another digit under its seal": sealed_text(record).replace(b'"p50": 0.1', b'"p50": 0.097', 1),
        "too long": b'{"x": "' + b"x" * (5 << 20) + b'"}',
    }


@pytest.mark.parametrize("name", torn(1))
def test_a_record_that_cannot_be_believed_is_a_row_and_spoils_no_other(tmp_path: Path, name: str) -> None:
    places = {1: "record.json", 3: "attempts/1/record.json"}
    directory = study(tmp_path, make_record(CELL, 2), repeats=3)
    for repeat, place in places.items():
        path = directory / "runs" / f"{CELL['cell_id']}-r{repeat}" / place
        path.parent.mkdir(parents=True)
        path.write_bytes(torn(repeat)[name])
    first, good, last = collect([directory]).frame.to_dicts()
    for bad, place in zip((first, last), places.values(), strict=True):
        assert bad["status"] == "unreadable"
        assert place in bad["status_reason"]
        assert bad["step_p50_s"] is None
        assert bad["run_s"] is None
        assert bad["nodes"] == 1
    assert good["status"] == "ok"
    assert good["step_p50_s"] == pytest.approx(0.1)


def test_a_record_that_may_not_be_read_is_a_row(tmp_path: Path) -> None:
    directory = study(tmp_path)
    run = directory / "runs" / RUN
    (run / "record.json").mkdir(parents=True)  # a directory cannot be read even by root
    assert only(directory)["status"] == "unreadable"


def test_runs_that_the_study_no_longer_asks_for_are_left_out_and_counted(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2])
    directory = study(tmp_path, *[make_record(cell, repeat) for cell in cells for repeat in (1, 2)], cells=cells, repeats=2)
    write_study(directory, cells[:1], repeats=1)
    collection = collect([directory])
    assert collection.frame["run_id"].to_list() == [f"{cells[0]['cell_id']}-r1"]
    assert collection.sources[0].left_out == 3
    assert "3 left out" in analyse(collection).summary.closing_line()


def test_a_renamed_dataset_has_the_name_of_today(tmp_path: Path) -> None:
    directory = study(tmp_path, make_record({**CELL, "dataset": "old"}))
    assert only(directory)["dataset"] == "digits"


def test_several_directories_have_labels_of_their_own(tmp_path: Path) -> None:
    for name, site in (("a", "alps"), ("b", "jura")):
        directory = write_study(tmp_path / name / "digits", [CELL], repeats=1, site=site)
        write_records(directory, [make_record(CELL, site=site)])
    collection = collect([tmp_path / "a" / "digits", tmp_path / "b" / "digits", tmp_path / "a" / ".." / "a" / "digits"])
    assert collection.frame["source"].to_list() == ["alps", "jura"]
    cells = analyse(collection).cells
    assert [cell.num_runs for cell in cells] == [1, 1], "cells of two clusters are two cells"


def test_directories_of_one_site_and_study_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for day, run_s in (("monday", 5.6), ("tuesday", 5.7)):
        write_records(write_study(tmp_path / day / "digits", [CELL], repeats=1), [make_record(CELL, run_s=run_s)])
    collection = collect([tmp_path / "monday" / "digits", tmp_path / "tuesday" / "digits"])
    assert [source.label for source in collection.sources] == ["monday/digits", "tuesday/digits"]


def test_wrong_directories_are_refused_with_what_to_give_instead(tmp_path: Path) -> None:
    directory = study(tmp_path)
    with pytest.raises(RecordError, match="is not a directory"):
        collect([tmp_path / "nowhere"])
    with pytest.raises(RecordError, match="it holds the studies digits"):
        collect([directory.parent])
    (directory / "study.json").write_text("{")
    with pytest.raises(RecordError, match=r"study\.json is not valid JSON"):
        collect([directory])
    (directory / "study.json").write_text('{"schema": "slipway.study/1", "study": "x"}')
    with pytest.raises(RecordError, match="is no resolved study"):
        collect([directory])
    (directory / "study.json").unlink()
    (directory / "runs").mkdir()
    with pytest.raises(RecordError, match=r"study\.json: it is missing, .*; put it back, or let `slipway run STUDY` write it anew"):
        collect([directory])


def test_parquet_gives_back_what_was_collected(tmp_path: Path) -> None:
    directory = study(tmp_path, make_record(CELL))
    collection = collect([directory])
    path = write_parquet(collection, directory)
    again = read_records(path)
    assert again.frame.equals(collection.frame)
    assert again.sources == collection.sources
    first = path.read_bytes()
    write_parquet(collect([directory]), directory)
    assert path.read_bytes() == first, "the same records give the same bytes"
    path.write_bytes(first[:100])
    with pytest.raises(RecordError, match="collect them again"):
        read_records(path)


def test_order_and_number_of_runs_survive_the_chunks(tmp_path: Path) -> None:
    cells = scaling_cells(batch_size=[1, 2, 3, 4, 5], nodes=[1, 2])
    directory = study(tmp_path, *[make_record(cell, step_s=0.01 * cell["batch_size"]) for cell in cells], cells=cells)
    runs = {f"{cell['cell_id']}-r1": Cell.from_json(cell) for cell in reversed(cells)}
    assert read_runs(directory / "runs", runs, chunk=3)["run_id"].to_list() == list(runs)
    frame = collect([directory]).frame
    assert frame["cell_id"].to_list() == [cell["cell_id"] for cell in cells]
    assert frame["step_p50_s"].to_list() == pytest.approx([0.01 * cell["batch_size"] for cell in cells])


def test_what_a_run_did_not_reach_is_null(tmp_path: Path) -> None:
    record = failed(CELL, status="storage")
    record["nodes"] = [
        {"name": "local-0", "hostname": "h", "cores": [0], "gpus": [], "cpu_model": None, "memory_bytes": None, "stage": None}
    ]
    row = only(study(tmp_path, record))
    assert row["status"] == "storage"
    assert [row[name] for name in ("result_s", "step_p50_s", "samples_per_s", "staged_bytes", "final_loss")] == [None] * 5
    assert (row["hosts"], row["hardware"]) == ("h", None)


@pytest.mark.parametrize(
    ("models", "hardware", "mixed"), [([GPU, GPU], f"{GPU}, {CPU}", False), ([GPU, "other"], f"{GPU} and other, {CPU}", True)]
)
def test_every_gpu_of_a_node_is_seen(tmp_path: Path, models: list[str], hardware: str, mixed: bool) -> None:
    cell = make_cell(gpus_per_node=2, device="cuda")
    record = make_record(cell)
    record["nodes"][0]["gpus"] = [{"uuid": f"GPU-{index}", "model": model} for index, model in enumerate(models)]
    row = only(study(tmp_path, record, cells=[cell]))
    assert (row["hardware"], row["mixed_hardware"]) == (hardware, mixed)
    assert ("hardware" in analysed(tmp_path / "results" / "digits").cells[0].marks) == mixed


def test_a_record_that_lies_in_two_directories_is_refused(tmp_path: Path) -> None:
    first = study(tmp_path, make_record(CELL))
    second = shutil.copytree(first, tmp_path / "two" / "digits")
    with pytest.raises(RecordError, match=f"{second}: it has records of {first}, the same by their seals; give one of the two alone"):
        collect([first, second])


HELD = """
import sys, threading
from workflow.report import record_reader

def find_record(runs_dir, run_id, found=record_reader.find_record):
    if run_id == "held":
        print("reads", flush=True)
        threading.Event().wait()
    return found(runs_dir, run_id)

record_reader.find_record, record_reader.SLOW_STORAGE_S = find_record, 0.0
record_reader.read_chunk(sys.argv[1], dict.fromkeys([*map(str, range(record_reader.FIRST)), "held"]))
"""


@pytest.mark.processes
def test_ctrl_c_ends_a_command_one_of_whose_threads_waits_for_a_record(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HELD, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reads\n"
            process.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
        finally:
            process.kill()
