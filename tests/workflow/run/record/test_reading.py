"""No file name and nothing that a program tells makes a record that its reader does not take."""

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from base.errors import RecordError
from base.jsonfile import json_text
from base.seal import sealed_text
from tests.workflow.report.builder import make_cell, make_record
from workflow.run.record.events import MAX_LINE, MAX_PROVENANCE, parse_events
from workflow.run.record.reading import MAX_BYTES, MAX_VALUES, find_record, read_record, read_value, record_at
from workflow.run.record.run_record import measured


def test_what_a_program_tells_of_its_libraries_is_bounded_in_all() -> None:
    said = {"torch_version": "2", **{f"key{number}": [[1e15] * 200] * 200 for number in range(2)}, "last": "there"}
    text = json.dumps({"event": "run_start", "provenance": said}, separators=(",", ":"))
    line = text.replace("1000000000000000.0", "1e15").encode() + b"\n"
    assert len(line) <= MAX_LINE
    found = measured({0: parse_events([line])}, 1, 8).provenance
    assert (found["torch_version"], found["last"]) == ("2", "there")
    assert all("left out" in found[f"key{number}"] for number in range(2))
    assert len(json_text(found)) <= MAX_PROVENANCE


def test_a_record_names_the_files_of_all_nodes() -> None:
    files = [{"path": f"of-node-{number}/{'x' * 90}", "bytes": 1, "blake3": "a" * 64} for number in range(30_000)]
    content = sealed_text(make_record(make_cell(), files=files))
    assert 4 << 20 < len(content) < MAX_BYTES
    assert len(read_record(content).files or ()) == 30_000


def test_a_record_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a-r1").mkdir()
    with (tmp_path / "a-r1" / "record.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    found = find_record(str(tmp_path), "a-r1")
    assert (found.path, found.content) == ("a-r1/record.json", b"")
    with pytest.raises(RecordError, match=f"it is empty, cannot be read, or has more than {MAX_BYTES} bytes"):
        read_record(found.content or b"")
    with pytest.raises(RecordError, match=f"{found.path} holds more than {MAX_BYTES} bytes"):
        record_at(tmp_path / str(found.path), "a-r1")


def test_the_attempt_that_counts_is_found_without_the_values_of_the_records(tmp_path: Path) -> None:
    content = b'{"attempt": 1, "kind": "result", "x": [%s0]}' % (b"[]," * 500_000)
    (tmp_path / "a-r1" / "attempts" / "1").mkdir(parents=True)
    (tmp_path / "a-r1" / "attempts" / "1" / "record.json").write_bytes(content)
    tracemalloc.start()
    try:
        found = find_record(str(tmp_path), "a-r1")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.path, found.content) == ("a-r1/attempts/1/record.json", content)
    assert peak < 6 * len(content), "an empty list has 64 bytes"


@pytest.mark.parametrize("reader", [read_record, read_value])
def test_a_record_of_too_many_values_is_not_parsed(reader: Callable[[bytes], object]) -> None:
    content = json_text(make_record(make_cell())).replace(b'"gpus": [', b'"gpus": [%s' % (b"{}," * MAX_VALUES), 1)
    for text in (content, content.replace(b"\n", b"")):  # a seal that is not on a line of its own is searched for
        with pytest.raises(RecordError, match=f"it has more than {MAX_VALUES} values"):
            reader(text)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("nodes", [{"hostname": "a", "gpus": [], "machine_cores": []}], "nodes[0].machine_cores: expected `object | null`, got `array`"),
        ("nodes", [{"hostname": "a", "gpus": [], "network": [{"kind": 5}]}], "nodes[0].network[0].kind: expected `str`, got `int`"),
        ("training.first_losses", [[0, "two"]], "training.first_losses[0][1]: expected `float`, got `str`"),
        ("training.replicas", {"checksum": "a", "ranks": 0, "apart": []}, "training.replicas.ranks: expected `int` >= 1"),
        ("training.replicas", {"checksum": "a", "ranks": 2}, "training.replicas: object missing required field `apart`"),
        ("cell.steps", {"measured": "many"}, "cell.steps[...]: expected `int`, got `str`"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_not_believed_and_named(path: str, value: Any, message: str) -> None:
    record = make_record(make_cell(), **{path: value})
    with pytest.raises(RecordError, match=f"^{re.escape(message)}$"):
        read_record(sealed_text(record))


def test_a_file_name_that_is_no_text_may_be_four_times_as_long() -> None:
    record = make_record(make_cell(), files=[{"path": "/".join(["\\xff" * 255] * 16), "bytes": 1, "blake3": "a" * 64}])
    assert read_record(sealed_text(record)).files is not None
