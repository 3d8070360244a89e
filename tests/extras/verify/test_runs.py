"""`slipway verify`: whatever was changed on storage is named, and what is whole passes."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from extras.verify.runs import CHILDREN, Verified, each_run, summary, verify_runs
from tests.workflow.report.builder import make_record, scaling_cells, write_records, write_study
from workflow.commands.main import run
from workflow.report.collect import collect
from workflow.run.record.events import read_events
from workflow.run.record.rate import thinned
from workflow.run.record.run_record import measured

pytestmark = pytest.mark.processes

CELL = scaling_cells(nodes=[2], steps=[{"warmup": 10, "measured": 120}])[0]
STEP_S = 0.32
BEGAN = datetime.fromisoformat(make_record(CELL)["time"]["start"])
RUN = f"{CELL['cell_id']}-r1"


def events(rank: int, first: int = 0, steps: int = 130) -> str:
    """The lines of a rank whose steps take a little longer now and then."""
    lines: list[dict[str, Any]] = [
        {"event": "run_start", "parameters": 10, "provenance": {}, "framework": "pytorch", "framework_version": "2.13.0",
         "hostname": f"node{rank:02d}.cluster", "time": BEGAN.timestamp() + 3, "monotonic_ns": 0}
    ]  # fmt: skip
    now = 0
    for step in range(first, first + steps):
        seconds = 0.3 + 0.01 * ((step * 7 + rank) % 5)
        now += round(seconds * 1e9)
        lines.append(
            {"event": "step", "step": step, "seconds": seconds, "input_s": 0.001, "samples": 32, "loss": 2 / (step + 1),
             "measured": step >= first + 10, "monotonic_ns": now}
        )  # fmt: skip
    lines.append({"event": "run_stop", "train_s": now / 1e9, "window_wall_s": 38.4, "window_steps_s": 38.3,
                  "time": BEGAN.timestamp() + 3 + now / 1e9, "monotonic_ns": now})  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


def attempt(results: Path, number: int = 1, first: int = 0, **changes: Any) -> dict[str, Any]:
    """An attempt on storage as a supervisor leaves it; its record."""
    directory = results / "runs" / RUN / "attempts" / str(number)
    (directory / "logs").mkdir(parents=True)
    (directory / "logs" / "rank-0.log").write_text("hello\n")
    for rank in range(2):
        (directory / f"events-{rank}.jsonl").write_text(events(rank, first))
    found = measured(read_events(directory, 2), 2, CELL["global_batch_size"], "train")
    files = [
        {"path": str(path.relative_to(directory)), "bytes": path.stat().st_size, "blake3": blake3(path.read_bytes()).hexdigest()}
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]
    parts = {
        "performance": msgspec.to_builtins(found.performance),
        "training": msgspec.to_builtins(found.training),
        "files": files,
        **changes,
    }
    record = make_record(CELL, attempt=number, step_s=STEP_S, **parts)
    write_records(results, [record])
    return record


@pytest.fixture
def results(tmp_path: Path) -> Path:
    directory = write_study(tmp_path / "results" / "digits", [CELL], repeats=1)
    attempt(directory)
    return directory


def test_what_is_whole_passes_and_is_counted(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(results)]) == 0
    said = capsys.readouterr().out
    assert "1 run, 2 records, 3 files" in said
    assert "numbers of 1 attempt computed again: all is what was written" in said


def test_a_record_of_a_version_without_checksums_of_parameters_is_whole(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its key is missing, which is not None; tables made of it are what it gives."""
    record = attempt_record(results)
    del record["training"]["replicas"]
    write_records(results, [record])
    assert run(["tables", str(results)]) == 0
    assert run(["verify", str(results)]) == 0
    assert "all is what was written" in capsys.readouterr().out
    assert collect([results]).frame.select("parameter_checksum", "checksum_ranks", "ranks_apart").row(0) == (None, None, None)


def attempt_record(results: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((results / "runs" / RUN / "record.json").read_bytes())
    del record["seal"]
    return record


CONTRADICTIONS: dict[str, tuple[Callable[[str, int], str], str]] = {
    "another world": (
        lambda text, rank: text.replace('"parameters": 10', '"parameters": 10, "world_size": 1', 1),
        "rank 0 tells of 1 ranks in all, and the run has 2: they did not work together",
    ),
    "another device": (
        lambda text, rank: text.replace('"parameters": 10', '"parameters": 10, "device": "cuda:0"', 1),
        "rank 0 computed on cuda:0, as it tells, and the run's device is cpu",
    ),
    "another network": (
        lambda text, rank: text,
        "the program trained another network: lenet has 11 parameters here, and rank 0 tells of 10",
    ),
    "no end": (lambda text, rank: text[: text.rindex('{"event": "run_stop"')] if rank else text, "was pushed without run_stop"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_an_ok_that_its_own_events_contradict_is_listed_and_left_as_it_is(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written, words = CONTRADICTIONS[name]
    plain = events
    monkeypatch.setitem(globals(), "events", lambda rank, first=0: written(plain(rank, first), rank))
    results = write_study(tmp_path / "results" / "digits", [CELL], repeats=1)
    (results / "runs" / RUN / "attempts" / "1").mkdir(parents=True)
    (results / "runs" / RUN / "attempts" / "1" / "cell.json").write_text(json.dumps({"model_parameters": 11 if "network" in name else 10}))
    attempt(results)
    before = (results / "runs" / RUN / "record.json").read_bytes()
    assert run(["verify", str(results)]) == 19
    (line,) = capsys.readouterr().out.splitlines()
    assert "attempts/1/record.json: it says ok, and is an error by the rules of this version: " in line
    assert words in line
    assert (results / "runs" / RUN / "record.json").read_bytes() == before


def change(path: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def apply(run_dir: Path) -> None:
        content = (run_dir / path).read_bytes()
        assert old in content
        (run_dir / path).write_bytes(content.replace(old, new, 1))

    return apply


def link(run_dir: Path) -> None:
    target = run_dir / "attempts" / "1" / "events-0.jsonl"
    aside = run_dir.parent / "aside"
    target.rename(aside)
    target.symlink_to(aside)


def set_aside(run_dir: Path) -> None:
    """Attempt 1 once more, as another one delivered it, and a digit of its record changed."""
    shutil.copytree(run_dir / "attempts/1", run_dir / "attempts/1.lost-0badcafe")
    change("attempts/1.lost-0badcafe/record.json", b'"repeat": 1', b'"repeat": 2')(run_dir)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a bit of a file": (change("attempts/1/logs/rank-0.log", b"hello", b"hellp"), "blake3 differs"),
    "a file cut": (change("attempts/1/logs/rank-0.log", b"hello\n", b"hello"), "5 bytes, the record says 6"),
    "a file gone": (lambda run_dir: (run_dir / "attempts/1/events-1.jsonl").unlink(), "it is missing"),
    "a file more": (lambda run_dir: (run_dir / "attempts/1/more.txt").touch(), "no file of the record"),
    "a link": (link, "a link or a special file"),
    "a fifo": (lambda run_dir: os.mkfifo(run_dir / "attempts/1/pipe"), "a link or a special file"),
    "a digit of a sealed record": (change("record.json", b'"repeat": 1', b'"repeat": 2'), "its seal does not fit"),
    "a torn record": (lambda run_dir: (run_dir / "attempts/1/record.json").write_text("{"), "it is no JSON"),
    "the record of an attempt set aside": (set_aside, "its seal does not fit"),
    "an old record published": (change("attempts/1/record.json", b'\n "seal"', b'\n "seal "'), "it is the record of no attempt"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_whatever_was_changed_is_named(results: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage, words = DAMAGE[name]
    damage(results / "runs" / RUN)
    assert run(["verify", str(results)]) == 19
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("number", ["performance.step_s.p50", "performance.samples_per_s", "training.final_loss", "training.losses"])
def test_a_number_that_its_events_do_not_give_is_named_even_under_a_right_seal(results: Path, number: str) -> None:
    part, *inner, last = number.split(".")
    record = json.loads((results / "runs" / RUN / "record.json").read_bytes())
    node = record[part]
    for key in inner:
        node = node[key]
    node[last] = node[last][:-1] if isinstance(node[last], list) else node[last] / 3
    if last == "p50":
        record["performance"]["step_s"]["min"] = 0.0
    write_records(results, [record])
    assert collect([results]).frame["status"].to_list() == ["ok"], "by itself it can be believed"
    findings = verify_runs(results).findings
    assert any(number in finding for finding in findings)


def test_a_record_by_the_rules_of_an_earlier_version_is_compared_where_it_can_be(results: Path) -> None:
    record = json.loads((results / "runs" / RUN / "record.json").read_bytes())
    for key in ("samples", "rate_to_median_ratio", "uneven_cause"):
        del record["performance"][key]
    record["performance"].update(samples_per_s=1.0, samples_per_s_per_gpu=0.5, straggler_rank=1)
    write_records(results, [record])
    assert verify_runs(results).findings == []
    record["performance"]["step_s"]["p50"] /= 1.01
    write_records(results, [record])
    assert len(verify_runs(results).findings) == 1


def test_a_record_whose_last_half_had_the_last_step_is_right(results: Path) -> None:
    record = json.loads((results / "runs" / RUN / "record.json").read_bytes())
    record["performance"].update(last_half_ratio=1.01, first_steps_ratio=0.99)
    write_records(results, [record])
    assert verify_runs(results).findings == []


def test_a_run_that_went_on_is_compared_with_both_its_attempts(results: Path) -> None:
    before = json.loads((results / "runs" / RUN / "record.json").read_bytes())
    resumed = {"attempt": 1, "step": 130, "used_s": 60.0}
    record = attempt(results, 2, 130, resumed_from=resumed, result_number=1)
    record["training"]["first_loss"] = before["training"]["first_loss"]
    record["training"]["first_losses"] = before["training"]["first_losses"]
    record["training"]["losses"] = [*before["training"]["losses"], *record["training"]["losses"]]
    record["training"]["losses"] = thinned(record["training"]["losses"])
    record["training"]["trained_s"] += before["training"]["trained_s"]
    write_records(results, [record])
    assert verify_runs(results).findings == []
    record["training"]["first_loss"] = 1.0
    write_records(results, [record])
    assert len(verify_runs(results).findings) == 1


def test_a_run_for_which_nothing_moves_is_named_and_no_more_are_begun(tmp_path: Path) -> None:
    def stuck(run: Path) -> Verified:
        while True:
            signal.pause()

    total = Verified()
    for one in each_run([tmp_path / f"run-{number}" for number in range(2 * CHILDREN)], stuck, silence_s=0.05):
        total.add(one)
    assert total.runs_not_verified == 2 * CHILDREN
    assert len(total.findings) == CHILDREN, "those that were begun together"
    assert any(f"{tmp_path / 'run-0'}: nothing moved for 0.05 s" in one for one in total.findings)
    assert f"{2 * CHILDREN} runs not verified: storage did not answer" in summary(total, [tmp_path])


@pytest.mark.parametrize("dies", [True, False])
def test_of_many_runs_those_beside_one_that_hangs_or_dies_are_verified(tmp_path: Path, dies: bool) -> None:
    def look(run: Path) -> Verified:
        while run.name == "run-97":
            os._exit(1) if dies else signal.pause()
        return Verified(runs=1, files=1)

    total = Verified()
    for found in each_run([tmp_path / f"run-{number}" for number in range(100)], look, silence_s=60.0 if dies else 5.0):
        total.add(found)
    assert (total.files, total.runs, total.runs_not_verified) == (97, 97 + 3 * dies, 3 * (not dies))
    assert len(total.findings) == 1
    assert f"{tmp_path / 'run-96'} to run-98" in total.findings[0]


def test_a_run_without_a_record_is_told_and_a_study_that_cannot_be_read_is_wrong(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.move(results / "runs" / RUN, results.parent / "elsewhere")
    assert run(["verify", str(results)]) == 0
    assert "0 runs, 0 records, 0 files (0 B); numbers of 0 attempts computed again; 1 run of the study without a record" in (
        capsys.readouterr().out
    )
    (results / "runs" / RUN).symlink_to(results.parent / "elsewhere")
    assert f"{results / 'runs' / RUN}: a link" in verify_runs(results).findings[0]
    (results / "study.json").write_text("{")
    assert run(["verify", str(results)]) == 19
    assert f"{results / 'study.json'} is not valid JSON" in capsys.readouterr().out


def test_a_published_record_that_is_gone_or_old_is_named_unless_its_run_goes_on(results: Path) -> None:
    run_dir = results / "runs" / RUN
    first = (run_dir / "record.json").read_bytes()
    attempt(results, 2, result_number=2)
    assert verify_runs(results).findings == []
    for damage, words in (
        (lambda: (run_dir / "record.json").unlink(), "it is missing, and attempt 2 is a result"),
        (lambda: (run_dir / "record.json").write_bytes(first), "it is not that of attempt 2, the newest result"),
    ):
        damage()
        assert verify_runs(results).findings == [f"{run_dir / 'record.json'}: {words}"]
        (run_dir / "lease.json").write_text("{}")
        assert verify_runs(results).findings == []
        (run_dir / "lease.json").unlink()


def test_an_earlier_result_that_is_gone_is_named(results: Path) -> None:
    attempt(results, 3, 130, result_number=2, resumed_from={"attempt": 1, "step": 130, "used_s": 60.0})
    shutil.rmtree(results / "runs" / RUN / "attempts" / "1")
    where = results / "runs" / RUN / "attempts"
    assert verify_runs(results).findings == [
        f"{where}: of its results number 1 is missing",
        f"{where / '3'}: it went on from an attempt that is not there",
    ]


def test_a_record_of_many_processes_is_looked_at_as_fast_as_any(results: Path) -> None:
    record = json.loads((results / "runs" / RUN / "record.json").read_bytes())
    many = 4096  # the most that a cell may have; the rest of a record is bounded by its size
    record["cell"].update(nodes=1, gpus_per_node=many, global_batch_size=many * record["cell"]["batch_size"])
    write_records(results, [{**record, "world_size": many, "nodes": record["nodes"][:1]}])
    assert any("its events give" in finding for finding in verify_runs(results).findings)


@pytest.mark.parametrize("target", ["study.json", "/nowhere/study.json"])
def test_a_study_that_is_a_link_to_nowhere_is_wrong(results: Path, target: str) -> None:
    (results / "study.json").unlink(missing_ok=True)
    (results / "study.json").symlink_to(target)
    (finding,) = verify_runs(results).findings
    assert finding.startswith(f"{results / 'study.json'} cannot be read")
