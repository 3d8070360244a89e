"""The command: checks that hang or crash, the report, the site file it writes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from base.command import CommandResult
from base.finding import Finding, worst
from base.packages import ROOMS
from cluster.schedulers.doctor import Value
from cluster.schedulers.slurm.answers import parse_nodes
from cluster.schedulers.slurm.doctor import check_slurm, choose_partition, from_partitions
from extras.doctor import checks as software
from extras.doctor import node, nodes, surroundings
from extras.doctor.checks import checks
from extras.doctor.guard import Check, guarded
from extras.doctor.node import to_lines
from extras.doctor.surroundings import Surroundings
from extras.doctor.write_site import site_text, target_of, why_scheduler
from tests.workflow.commands.conftest import FOREIGN
from workflow.commands import main
from workflow.study.site_file import load_site, read_site


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


def fine() -> tuple[Finding, ...]:
    return (Finding("a", "ok", "fine"),)


def hangs() -> tuple[Finding, ...]:
    signal.pause()
    return ()


def crashes() -> tuple[Finding, ...]:
    raise KeyError("surprise")


def dies() -> tuple[Finding, ...]:
    os.kill(os.getpid(), signal.SIGKILL)
    return ()


def refuses() -> tuple[Finding, ...]:
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
    (finding,) = guarded(Check(subject="a", function=function, timeout_s=0.2 if function is hangs else 20))  # type: ignore[arg-type]
    assert finding.level == level
    assert words in finding.text


@pytest.mark.slow
def test_the_report(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--site", str(site)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"site here: storage {site.parent / 'storage'}")
    assert re.search(r"\n0 errors, \d+ warnings?, \d+ notes?; \d+ in order\n$", out)
    assert "  ok       no scheduler is here; the site says local" in out
    assert {path.name for path in site.parent.iterdir()} == {"here.yaml"}


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
    assert {"storage", "cache", "limits", "names", "network", "gpus", "engines", "software"} <= {
        one["subject"] for one in value["findings"]
    }
    assert all(Finding.from_json(one) for one in value["findings"])


def test_wrong_usage(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "mine", "--site", str(site)]) == 2
    assert "goes with --write-site" in capsys.readouterr().err


@pytest.mark.slow
def test_a_site_file_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize("name", ["local", "../up", "With Blank", "a/b/c.yaml", ".hidden"])
def test_names_that_a_site_file_cannot_have(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--write-site", name]) == 10
    assert "slipway: " in capsys.readouterr().err


def test_a_name_stands_for_a_file_of_the_checkout() -> None:
    assert target_of("never-there").parts[-3:] == ("config", "sites", "never-there.yaml")


@pytest.mark.slow
def test_a_name_stands_for_a_file_of_ones_own_where_the_installation_is_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a wheel: beside the rooms lies what a wheel carries."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "not-there-yet"))
    for room in ("base", "cluster", "containers", "data_prep", "extras", "workflow"):
        shutil.copytree(ROOMS / room, tmp_path / "rooms" / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOMS / "config", tmp_path / "rooms" / "workflow" / "installed" / "config")
    argv = [sys.executable, "-m", "workflow.commands.main", "doctor", "--write-site", "mine"]
    done = subprocess.run(argv, cwd=tmp_path / "rooms", capture_output=True, text=True, check=True)
    assert "next: slipway doctor --site mine\n" in done.stdout
    assert read_site(tmp_path / "not-there-yet" / "slipway" / "sites" / "mine.yaml").name == "mine"


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
        "network_interface": Value(value="ib0", why="the fastest"),
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


def test_where_it_runs() -> None:
    inside = surroundings.look({"SLURM_JOB_ID": "999999999", "SLURM_JOB_NODELIST": "n[1-3]"})
    assert (inside.scheduler, inside.job_id, inside.nodes) == ("slurm", "999999999", ("n1", "n2", "n3"))
    assert surroundings.look({"LSB_JOBID": "5"}).scheduler == "lsf"
    assert surroundings.look({}) == Surroundings(hostname=os.uname().nodename, scheduler="local")


def test_answers_of_the_nodes() -> None:
    answer = {"node": "n1", "clock": 1.0, "facts": {"long": " x" * 2000}, "findings": [Finding("a", "ok", "fine").to_json()]}
    lines = [*to_lines("n7", json.dumps(answer)), *to_lines("n8", "{torn"), *to_lines("n9", "{}"), *list(to_lines("n5", "x" * 2000))[1:]]
    random.Random(1).shuffle(lines)
    assert max(map(len, lines)) < 1024
    text = "noise\n" + "".join(lines) + "slipway-doctor n6 1\n"
    (found,) = nodes.parse_answers(text)
    assert (found.node, found.findings) == ("n1", (Finding("a", "ok", "fine"),))
    result = CommandResult(argv=("srun",), returncode=2, stdout="", stderr="slurmstepd: error: execve(): python: No such file\n")
    missing = list(nodes.judge_python(result, (found,), ("n1", "n2")))
    assert [finding.level for finding in missing] == ["error"]
    assert "did not start on n2: slurmstepd: error: execve()" in missing[0].text
    assert worst(nodes.judge_python(result, (found,), ("n1",))) == "ok"


def test_clocks_of_the_nodes() -> None:
    assert worst(nodes.judge_clocks({"n1": 100.2, "n2": 100.4}, 100.0, 101.0)) == "ok"
    (late,) = nodes.judge_clocks({"n1": 100.2, "n2": 40.0}, 100.0, 101.0)
    assert (late.level, late.nodes) == ("warning", ("n2",))
    assert "60 s behind ours" in late.text
    (early,) = nodes.judge_clocks({"n1": 161.0}, 100.0, 101.0)
    assert "60 s ahead of ours" in early.text


def test_whether_a_node_sees_what_was_made(tmp_path: Path) -> None:
    file = tmp_path / "made" / "seen"
    file.parent.mkdir()
    file.write_text("token")
    assert worst(node.check_seen(str(file), "token")) == "ok"
    assert worst(node.check_seen(str(file), "other", 0.0)) == "error"
    assert worst(node.check_seen(str(tmp_path / "no" / "seen"), "token", 0.0)) == "error"


@pytest.mark.slow
def test_the_node_program_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders = node.Orders(
        cache=str(tmp_path / "cache"), max_bytes=None, private_tmp=False, device="cpu", gpus_per_node=None, engine="bare", interface=None
    )
    assert node.main([node.to_argument(orders)], {"SLURMD_NODENAME": "n7"}) == 0
    (answer,) = nodes.parse_answers(capsys.readouterr().out)
    assert answer.node == "n7"
    assert abs(answer.clock - time.time()) < 60
    assert {finding.nodes for finding in answer.findings} == {("n7",)}
    assert answer.facts["cores"] >= 1


@pytest.mark.slow
def test_the_node_program_imports_little() -> None:
    heavy = "{'pydantic', 'yaml', 'numpy', 'typer', 'rich'}"
    script = f"import sys, extras.doctor.node; sys.stderr.write(' '.join({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOMS, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_versions_and_pins() -> None:
    wanted = software.pins(software.requirements())
    assert wanted["torch"] == "2.13.0"
    assert software.pins(["a>=2", "b==1 ; extra == 'c'", "d"]) == {"b": "1"}
    assert wanted["snakemake"] == importlib.metadata.version("snakemake")
    assert worst(software.judge_versions({"a": "1"}, {"a": "1"})) == "ok"
    assert "a not installed (wanted 1)" in next(software.judge_versions({"a": "1"}, {"a": None})).text


def test_commands_without_a_cluster_are_not_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    where = Surroundings(hostname="here", scheduler="local")
    assert why_scheduler(where) == "no scheduler's commands are on PATH"
    for name in ("sbatch", "srun", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    assert why_scheduler(where) == "the commands of slurm are on PATH, and there is no cluster that they know"


def test_commands_of_the_sites_scheduler_are_asked_whether_they_know_a_cluster(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("sbatch", "srun", "scontrol"):
        (tmp_path / name).touch(mode=0o755)
    site.write_text(f"{site.read_text()}scheduler: slurm\n")
    where = Surroundings(hostname="here", scheduler="local")
    assert where.describe(load_site(str(site))) == "on here, outside of any allocation of slurm"
    assert check_slurm in [check.function for check in checks(load_site(str(site)), where)]
