"""Event files of TensorBoard: the bytes by the format's own rules, and what TensorBoard itself reads in them, where it is installed."""

import json
import struct
from pathlib import Path

import pytest

from extras.export.tensorboard import Scalar, event_file, masked_crc, scalars
from tests.workflow.report.builder import make_cell, make_record, write_records, write_study
from workflow.commands.main import run
from workflow.run.record.events import parse_events


def results(tmp_path: Path) -> Path:
    """A results directory with one run of two ranks and three steps."""
    cell = make_cell(nodes=2)
    record = make_record(cell)
    directory = write_study(tmp_path / "digits", [cell], repeats=1)
    write_records(directory, [record])
    for rank in range(2):
        step = {"event": "step", "seconds": 0.5 + rank / 2, "samples": 32}
        steps = [{**step, "step": number, "loss": 2.0 - number + rank, "monotonic_ns": number * 10**9} for number in range(3)]
        lines = [{"event": "run_start", "rank": rank}, *steps, {"event": "eval", "split": "test", "loss": 0.5, "accuracy": 0.75}]
        events = directory / "runs" / record["run_id"] / "attempts" / "1" / f"events-{rank}.jsonl"
        events.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return directory


def records_of(content: bytes) -> list[bytes]:
    """The records of a TFRecord file, every checksum compared."""
    found = []
    while content:
        (length,) = struct.unpack_from("<Q", content)
        assert struct.unpack_from("<I", content, 8)[0] == masked_crc(content[:8])
        data = content[12 : 12 + length]
        assert struct.unpack_from("<I", content, 12 + length)[0] == masked_crc(data)
        found.append(data)
        content = content[16 + length :]
    return found


def test_the_checksum_is_that_of_the_format() -> None:
    crc = 0xE3069283  # of "123456789" by RFC 3720
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_an_event_is_written_as_protocol_buffers_want_it() -> None:
    content = event_file([Scalar(1.5, 300, "loss", 0.25)])
    assert content is not None
    version, event = records_of(content)
    assert version == b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2"
    value = b"\x0a\x04loss" + b"\x15" + struct.pack("<f", 0.25)
    assert event == b"\x09" + struct.pack("<d", 1.5) + b"\x10\xac\x02" + b"\x2a" + bytes([len(value) + 2, 0x0A, len(value)]) + value


def test_scalars_are_of_all_ranks() -> None:
    line = b'{"event": "step", "step": 0, "seconds": %s, "samples": 10, "loss": %s, "input_s": 0.1}\n'
    found = scalars({0: parse_events([line % (b"1", b"3")]), 1: parse_events([line % (b"2", b"1")])}, "samples", 100.0)
    assert {one.tag: one.value for one in found} == {"loss": 2.0, "rate/samples_per_s": 10.0, "time/step_s": 2.0, "time/input_s": 0.1}


def test_an_evaluation_in_the_midst_of_a_run_stands_at_its_step() -> None:
    step = b'{"event": "step", "step": %d, "seconds": 1, "samples": 10}\n'
    evaluation = b'{"event": "eval", "split": "test", "accuracy": %s, "step": %d, "time": %d}\n'
    lines = [step % 0, evaluation % (b"0.5", 1, 101), step % 1, step % 2, evaluation % (b"0.75", 3, 104)]
    found = [one for one in scalars({0: parse_events(lines)}, "samples", 100.0) if one.tag == "eval/accuracy"]
    assert [(one.time, one.step, one.value) for one in found] == [(101.0, 1, 0.5), (103.0, 2, 0.75)]


def test_a_run_without_steps_is_no_file() -> None:
    assert scalars({}, "samples", 0.0) == []
    assert event_file([]) is None


def test_the_command_writes_a_file_per_run_and_a_second_time_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results(tmp_path)
    words = ["export", "tensorboard", str(found), "--to", str(tmp_path / "tb")]
    assert run(words) == 0
    assert "1 run of digits: 1 file in " in capsys.readouterr().out
    (file,) = (tmp_path / "tb").rglob("events.out.tfevents.*")
    before = file.read_bytes()
    assert run(words) == 0
    assert file.read_bytes() == before
    assert len(records_of(before)) == 1 + 3 * 3 + 2


def test_a_wrong_format_is_told_with_the_right_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "tensorbord", str(results(tmp_path))]) == 10
    assert "tensorboard" in capsys.readouterr().err


def test_tensorboard_reads_it(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed here: pip install tensorboard"
    )
    assert run(["export", "tensorboard", str(results(tmp_path)), "--to", str(tmp_path / "tb")]) == 0
    (file,) = (tmp_path / "tb").rglob("events.out.tfevents.*")
    loaded = accumulator.EventAccumulator(str(file.parent))
    loaded.Reload()
    assert [(event.step, event.value) for event in loaded.Scalars("loss")] == [(0, 2.5), (1, 1.5), (2, 0.5)]
