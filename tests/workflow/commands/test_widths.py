"""On terminals of 80 and of 100 columns: no line is wider, and no number, unit or path is broken or lost."""

import re
import sys

import pytest

from extras.doctor import command as doctor
from extras.doctor.types import Finding
from tests.workflow.commands.conftest import House
from workflow.study.publishing import publish_resolved

pytestmark = pytest.mark.processes

UNITS = re.compile(r"\d[\d.,]* (?:[kMGT]?B(?:/s)?|m?s|%)(?= |$|,)", re.MULTILINE)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
KEYS = {"precision": ["fp32", "bf16"], "batch_size": [32, 64], "nodes": [1, 2]}
COMMANDS = [("plan",), ("status",), ("tables", "--show"), ("cache", "ls")]


@pytest.fixture
def study(house: House) -> House:
    """With runs of every state, long names, and something in the cache."""
    study = house.study(study="a-study-with-a-rather-long-name", axes=KEYS, base={"layout": "nhwc", "comm_hook": "powersgd"})
    publish_resolved(study)
    for run, status in zip(study.runs, ("ok", "ok", "ok", "oom", "storage", "nan"), strict=False):
        reason = f"rank 1 of 2 at {study.results_dir}/runs/{run.run_id}/attempts/1/logs: {'many words and 12.5 GB ' * 6}"
        house.record(run.run_id, status, **({} if status == "ok" else {"status_reason": reason}))
    dataset = house.root / "cache" / "local-0" / "datasets" / f".a-dataset-of-a-long-name-{'0' * 12}.part"
    dataset.mkdir(parents=True, mode=0o700)
    (dataset / "file").write_bytes(bytes(123_456))
    return house


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_is_broken(study: House, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], columns: int) -> None:
    natural = study(*command)
    assert natural.code == 0, natural.err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    folded = ANSI.sub("", study(*command).out)
    words = natural.out.split()
    assert set(words) - set(folded.split()) == set()
    assert [line for line in folded.splitlines() if len(line) > columns and not re.match(r" *(\w+: )?(\S+$|slipway )", line)] == []
    units = UNITS.findall(natural.out)
    assert [text for text in units if text not in folded] == []
    if command == ("plan",):
        assert units


def test_paths_in_a_status_are_below_what_is_named_once(study: House) -> None:
    out = study("status").out
    assert out.count(f"{study.root}/storage") == 1
    assert re.search(r"^    rank 1 of 2 at runs/\S+/attempts/1/logs: many words", out, re.MULTILINE)


@pytest.mark.parametrize("columns", [80, 100])
def test_a_finding_of_the_doctor_is_folded_at_blanks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    path = "/a/rather/long/path/that/nobody/should/break/into/pieces/whatever/the/terminal/has/for/a/width"
    text = f"{path} has 12.5 GB of 200 GB free and writes 350 MB/s " * 4
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    doctor._line(Finding("storage", "warning", text, f"make room for 100 GB in {path} " * 3, ("n1", "n2")), 3)
    lines = ANSI.sub("", capsys.readouterr().out).splitlines()
    assert " ".join(lines).count(path) == 7
    assert sum(line.count(size) for line in lines for size in ("12.5 GB", "200 GB", "350 MB/s", "100 GB")) == 15
    assert [line for line in lines if len(line) > columns and path not in line] == []


def test_a_reason_is_indented_as_a_whole(study: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = ANSI.sub("", study("status").out).splitlines()
    reasons = [index for index, line in enumerate(lines) if "rank 1 of 2 at" in line]
    assert len(reasons) == 3
    assert all(lines[index].startswith("    rank 1") and lines[index + 1].startswith("    ") for index in reasons)
