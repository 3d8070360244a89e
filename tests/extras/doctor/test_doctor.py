"""The command: checks that hang or crash, the report, the site file it writes."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from base.process import CODE_ROOT
from cluster.schedulers.slurm.answers import parse_nodes
from extras.doctor import nodes, storage
from extras.doctor.checks import run_guarded
from extras.doctor.slurm import choose_partition, from_partitions
from extras.doctor.types import Check, Context, Finding, Value, worst
from extras.doctor.write_site import site_text, target_of
from tests.workflow.commands.conftest import FOREIGN
from workflow.commands import main
from workflow.study.site import Cache, local_site
from workflow.study.site_file import read_site

HERE = Context(site=local_site(has_gpu=False), place="alone", hostname="here", scheduler="local")


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Outside of every job, with no scheduler on PATH."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "here.yaml"
    path.write_text("storage: storage\ncache: {path: cache}\n")
    return path


def fine(_context: Context) -> tuple[Finding, ...]:
    return (Finding("a", "ok", "fine"),)


def hangs(_context: Context) -> tuple[Finding, ...]:
    signal.pause()
    return ()


def crashes(_context: Context) -> tuple[Finding, ...]:
    raise KeyError("surprise")


def dies(_context: Context) -> tuple[Finding, ...]:
    os.kill(os.getpid(), signal.SIGKILL)
    return ()


def refuses(_context: Context) -> tuple[Finding, ...]:
    return (Finding("a", "ok", Path("/proc/self/mem/none").read_text()),)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("function", "level", "words"),
    [
        (fine, "ok", "fine"),
        (hangs, "error", "did not end within 0.2 s"),
        (crashes, "warning", "the check crashes failed: a: KeyError: 'surprise': this is a defect of Slipway"),
        (dies, "warning", "died without an answer"),
        (refuses, "warning", "Not a directory"),
    ],
)
def test_a_check_ends_in_findings_whatever_it_does(function: object, level: str, words: str) -> None:
    (finding,) = run_guarded(Check("a", function, ("alone",), 0.2 if function is hangs else 20), HERE)  # type: ignore[arg-type]
    assert finding.level == level
    assert words in finding.text


@pytest.mark.slow
def test_an_error_is_an_exit_code_and_stands_last(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.write_text("storage: storage\ncache: {path: cache}\nscheduler: slurm\ndevice: cpu\n")
    assert main.run(["doctor", "--site", str(site)]) == 10
    said = capsys.readouterr()
    assert said.err.startswith("slipway: 1 error at the site 'here', the first: scheduler: the site says scheduler: slurm")
    assert "salloc --nodes=2 --exclusive --time=10" in said.out
    last = said.out.rstrip().split("\n\n")[-2]
    assert last.startswith("scheduler\n")
    assert "-> run this on a login node" in last


@pytest.mark.slow
def test_json_is_for_programs(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--site", str(site), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["scheduler"], value["job_id"], value["nodes"]) == ("local", None, [])
    assert {"storage", "cache", "limits", "network", "gpus", "engines"} <= {one["subject"] for one in value["findings"]}
    assert msgspec.convert(value["findings"], list[Finding])
    assert {path.name for path in site.parent.iterdir()} == {"here.yaml"}


def test_wrong_usage(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "mine", "--site", str(site)]) == 2
    assert "goes with --write-site" in capsys.readouterr().err


@pytest.mark.slow
def test_a_site_file_of_this_machine_is_checked_without_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new.yaml"
    assert main.run(["doctor", "--write-site", str(target)]) == 0
    said = capsys.readouterr().out
    assert f"written to {target}" in said
    assert f"next: slipway doctor --site {target}" in said
    found = read_site(target)
    assert (found.scheduler, found.engine, found.share_nodes) == ("local", "bare", False)
    before = target.read_text()
    assert main.run(["doctor", "--write-site", str(target)]) == 10
    assert "is there already, and is not overwritten" in capsys.readouterr().err
    assert target.read_text() == before
    assert main.run(["doctor", "--site", str(target)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"site new: storage {found.storage}, cache ")
    assert re.search(r"\n0 errors, \d+ warnings?, \d+ notes?; \d+ in order\n$", out)
    assert "  ok       no scheduler is here; the site says local" in out


@pytest.mark.parametrize("name", ["local", "../up", "With Blank", "a/b/c.yaml", ".hidden"])
def test_names_that_a_site_file_cannot_have(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--write-site", name]) == 10
    assert "slipway: " in capsys.readouterr().err


def test_a_name_stands_for_a_file_of_the_checkout() -> None:
    assert target_of("never-there").parts[-3:] == ("config", "sites", "never-there.yaml")


PARTITIONS = {
    "cpu": {"PartitionName": "cpu", "State": "UP", "Default": "YES", "MaxTime": "UNLIMITED"},
    "gpu": {"PartitionName": "gpu", "State": "UP", "MaxTime": "1-12:30:00"},
    "big": {"PartitionName": "big", "State": "DOWN", "MaxTime": "1:00:00"},
}
NODES = parse_nodes(
    "cpu|9|idle|128|257000|(null)|(null)\ngpu|2|mixed|64|515000|gpu:a100:4|x\ngpu|1|idle|48|515000|gpu:a100:2|x\n"
    "gpu|1|down*|8|1000|gpu:a100:1|x\nbig|50|idle|64|515000|gpu:a100:8|x\n"
)


def test_a_draft_for_a_cluster_with_several_partitions(tmp_path: Path) -> None:
    found = from_partitions(PARTITIONS, NODES)
    assert {key: value.value for key, value in found.items()} == {
        "queue": "gpu",
        "cpus_per_node": 48,
        "memory_per_node": "515000MiB",
        "gpus_per_node": 2,
        "walltime": "1d12h30m",
    }
    found |= {
        "scheduler": Value(value="slurm", why="its commands are on PATH"),
        "storage": Value(value="/nfs/my project: #1/slipway", why="$WORK", sure=False),
        "cache": Value(value="/local/slipway-ann", why="a local disk"),
        "account": Value(value="yes", why="one of yours"),
        "device": Value(value="cuda", why="the scheduler grants GPUs", sure=False),
    }
    path = tmp_path / "draft.yaml"
    path.write_text(site_text(found, "on login", Path("schema.json")))
    site = read_site(path)
    assert site.storage == Path("/nfs/my project: #1/slipway")
    assert (site.queue, site.account, site.device, site.gpus_per_node, site.walltime_s) == ("gpu", "yes", "cuda", 2, 131400)
    assert path.read_text().count("# A GUESS: ") == 2


def test_which_partition_a_draft_takes() -> None:
    assert choose_partition(PARTITIONS, [one for one in NODES if not one.gpus]) == "cpu"
    assert choose_partition(PARTITIONS, ()) == "cpu"
    assert choose_partition({}, ()) is None
    assert from_partitions({}, ()) == {}


PRINTED = f"noise\n{nodes.MARK} {json.dumps([{'subject': 'a', 'level': 'ok', 'text': 'fine' + ' x' * 2000}])}\nmore noise\n"


def test_answers_of_the_nodes() -> None:
    answer = nodes.parse_answer(PRINTED)
    assert answer[0].text[:4] == "fine"
    for torn in ("", f"{nodes.MARK} {{}}\n", f"{nodes.MARK} {{torn\n"):
        with pytest.raises(msgspec.DecodeError):
            nodes.parse_answer(torn)
    found = list(nodes.judge_answers({"n1": answer, "n2": "execve(): python: No such file"}))
    assert (found[0].level, found[0].text) == ("error", "our Python did not start on n2: execve(): python: No such file")
    assert worst(nodes.judge_answers({"n1": answer})) == "ok"


def test_whether_a_node_sees_what_was_made(tmp_path: Path) -> None:
    file = tmp_path / "made" / "seen"
    file.parent.mkdir()
    file.write_text("token")
    context = replace(HERE, place="node", token_file=str(file), token="token")
    assert worst(storage.check_seen(context)) == "ok"
    assert worst(storage.check_seen(replace(context, token="other"), 0.0)) == "error"
    assert worst(storage.check_seen(replace(context, token_file=str(tmp_path / "no" / "seen")), 0.0)) == "error"


@pytest.mark.slow
def test_the_node_program_says_what_it_found(tmp_path: Path) -> None:
    site = replace(HERE.site, cache=Cache(path=tmp_path / "cache"), env=(("SECRET", "x"),))
    line = nodes.request_of(replace(HERE, site=site, place="job", job_id="7", nodes=("n7", "n8")))
    environ = {**os.environ, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n7"}
    done = subprocess.run([*nodes.ARGV, "--nodes", "x"], input=line, cwd=CODE_ROOT, env=environ, capture_output=True, text=True, check=True)
    answer = nodes.parse_answer(done.stdout)
    assert {finding.nodes for finding in answer} == {("n7",)}
    assert {finding.subject for finding in answer} == {"cache", "limits", "network", "gpus", "engines"}


@pytest.mark.slow
def test_the_node_program_imports_little() -> None:
    heavy = "{'pydantic', 'yaml', 'numpy', 'typer', 'rich'}"
    script = f"import sys, extras.doctor.checks; sys.stderr.write(' '.join({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=CODE_ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
