"""Where each run stands, and its logs."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from base.errors import StorageError
from cluster.holder import holder_of
from cluster.schedulers.jobs import mark_of
from tests.workflow.commands.conftest import House, Queue, queued
from workflow.commands import status
from workflow.commands.watching.watch import run_states
from workflow.dag.cell_needs import images_file
from workflow.run.record.rate import NOT_COMPARED
from workflow.run.storage.lease import new_lease
from workflow.study.study import Study

ROOT = Path(__file__).parents[3]


def hold(house: House, run_id: str, pid: int = 0, attempt: int = 1, **changes: object) -> None:
    """A lease of a process of this machine, by default ours."""
    run_dir = house.load().results_dir / "runs" / run_id
    run_dir.mkdir(parents=True, exist_ok=True)
    lease = new_lease(holder_of(os.getpid(), "local", "1", 0), attempt).to_json()
    (run_dir / "lease.json").write_text(json.dumps({**lease, **({"pid": pid} if pid else {}), **changes}))


def write_log(study: Study, name: str, text: str) -> Path:
    """What a supervisor or a job of the study has said."""
    path = study.results_dir / "logs" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.processes
def test_every_state(house: House) -> None:
    study = house.study(base={"repeats": 3})
    names = [run.run_id for run in study.runs]
    house.record(names[0], "ok")
    house.record(names[1], "nan", status_reason="rank 1 on here met a loss that is not a number\nits last lines:\nx")
    house.record(names[2], "storage", status_reason="storage does not answer")
    hold(house, names[3])
    house.record(names[4], "ok", published=False)
    hold(house, names[5], pid=2**22 - 1)
    torn = house.record(names[6], "ok")
    (torn.parents[1] / "record.json").write_text('{"stat')
    (torn / "record.json").write_text('{"stat')
    house.record(names[8], "storage", attempt=1)
    house.record(names[8], "node_lost", attempt=2)
    hold(house, names[9], boot_id="elsewhere", host="other-host")
    hold(house, names[10])
    (study.results_dir / "runs" / names[10] / "lease.json").write_text("")
    write_log(study, names[10], "10:00:00 run INFO cancelled: the supervisor got SIGINT\n")
    write_log(study, names[11], "10:00:00 run ERROR the image is not there; build it\n")
    said = house.json("status")
    found = {run["run_id"]: run for run in said["runs"]}
    assert list(found) == [f"{cell.cell_id}-r{repeat}" for cell in study.cells for repeat in (1, 2, 3)], "as tables have them"
    states = "done failed prevented running missing missing failed missing prevented running missing missing"
    assert " ".join(found[name]["state"] for name in names) == states
    assert found[names[1]]["reason"] == "rank 1 on here met a loss that is not a number"
    assert found[names[1]]["log"] == str(study.results_dir / "runs" / names[1] / "attempts" / "1" / "logs")
    assert found[names[2]]["status"] == "storage"
    assert f"process {os.getpid()}" in found[names[3]]["reason"]
    assert "not published" in found[names[4]]["reason"]
    assert found[names[5]]["reason"] == "started, and left no record"
    assert found[names[6]]["status"] == "unreadable"
    assert found[names[7]]["reason"] is None
    assert (found[names[8]]["status"], found[names[8]]["attempt"]) == ("node_lost", 2), "the newest attempt speaks for the run"
    assert "cannot be seen from here" in found[names[9]]["reason"]
    assert found[names[10]]["reason"] == "started, and left no record; its log ends with: cancelled: the supervisor got SIGINT"
    assert found[names[11]]["reason"] == "the image is not there; build it"
    assert {key: said[key] for key in ("done", "failed", "prevented", "running", "missing")} == {
        "done": 1, "failed": 2, "prevented": 2, "running": 2, "missing": 5,
    }  # fmt: skip
    text = house("status").out
    assert "small: 12 runs: 1 done, 2 failed, 2 prevented, 2 running, 5 missing" in text
    assert "failed (nan)" in text


def write_logs(directory: Path) -> None:
    (directory / "logs" / "rank-0.log").write_bytes(b"first\nred \x1b[31m text \xff\n" + b"x" * 100_000 + b"\nlast\n")
    (directory / "logs" / "rank-1.log").write_text("other rank\n")
    (directory / "logs" / "node-0.log").write_text("node\n")


def test_logs_of_the_latest_attempt(house: House) -> None:
    study = house.load()
    name = study.runs[0].run_id
    write_logs(house.record(name, "storage", attempt=1))
    (house.record(name, "ok", attempt=10) / "logs" / "rank-0.log").write_text("tenth\n")
    supervisor = write_log(study, name, "supervisor said\n")
    out = house("logs", name).out
    assert f"==> {supervisor} <==\nsupervisor said\n" in out
    assert "attempts/10/logs/rank-0.log <==\ntenth\n" in out
    assert "other rank" not in out


def test_logs_without_a_line_are_named_last(house: House) -> None:
    name = house.load().runs[0].run_id
    write_logs(house.record(name, "ok"))
    logs = house.load().results_dir / "runs" / name / "attempts" / "1" / "logs"
    (logs / "node-0.log").write_text("")
    (logs / "rank-0.log").write_text("")
    assert house("logs", name).out == f"==> {logs}/rank-1.log <==\nother rank\n\nnothing was written to node-0.log, rank-0.log\n"


def test_one_attempt_one_rank_last_lines(house: House) -> None:
    name = house.load().runs[0].run_id
    write_logs(house.record(name, "ok"))
    house.record(name, "ok", attempt=2)
    assert [line for line in house("logs", name, "--attempt", "1").out.splitlines() if line.startswith("==>")] == [
        f"==> {house.load().results_dir}/runs/{name}/attempts/1/logs/{file}.log <==" for file in ("node-0", "rank-0", "rank-1")
    ]
    out = house("logs", name, "--attempt", "1", "--rank", "0", "-n", "1").out
    assert out.splitlines()[1:] == ["last"]
    out = house("logs", name, "--attempt", "1", "--rank", "0").out
    assert "\x1b" not in out
    assert "red \N{REPLACEMENT CHARACTER}[31m text \N{REPLACEMENT CHARACTER}" in out


def test_logs_of_runs_that_run_here(house: House) -> None:
    """Of two attempts where the result of the first waits for storage while the second one runs; of no other study."""
    name, results = house.load().runs[0].run_id, house.load().results_dir
    for node, attempt, study in ((0, 1, results.name), (1, 1, results.name), (0, 2, results.name), (0, 1, "another-of-the-same-cell")):
        work = house.root / "cache" / f"local-{node}" / "runs" / f"{name}-a{attempt}-{study}"
        (work / "own" / "logs").mkdir(parents=True)
        (work / "run.json").write_text(json.dumps({"run_dir": str(results.with_name(study) / "runs" / name), "attempt": attempt}))
        (work / "own" / "logs" / f"rank-{node}.log").write_text(f"I am {node} of {study}, attempt {attempt}\n")
    said = sorted(line for line in house("logs", name).out.splitlines() if line.startswith("I am"))
    assert said == [f"I am {node} of {results.name}, attempt {attempt}" for node, attempt in ((0, 1), (0, 2), (1, 1))]


@pytest.mark.parametrize("more", [(), ("--follow",)])
def test_more_logs_are_shown_than_a_process_may_open(house: House, more: tuple[str, ...]) -> None:
    name = house.load().runs[0].run_id
    logs = house.record(name, "ok") / "logs"
    for rank in range(100):
        (logs / f"rank-{rank}.log").write_text(f"rank {rank}\n")
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, usual[1]))
    try:
        out = house("logs", name, *more).out
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert "not shown" not in out
    assert "\nrank 99\n" in out


def test_a_log_that_is_a_link_or_a_pipe_is_not_shown_and_not_waited_for(house: House) -> None:
    name = house.load().runs[0].run_id
    logs = house.record(name, "ok") / "logs"
    (house.root / "secret").write_text("secret")
    (logs / "rank-0.log").symlink_to(house.root / "secret")
    os.mkfifo(logs / "rank-1.log")
    out = house("logs", name).out
    assert "[not shown: it is a symbolic link]" in out
    assert "[not shown: it is a pipe]" in out
    assert "secret" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "it was never started"), (["--attempt", "3"], "no logs of attempt 3"), (["--rank", "9"], "no log of rank 9")],
)
def test_no_logs(house: House, words: list[str], message: str) -> None:
    said = house("logs", house.load().runs[0].run_id, *words)
    assert said.code == 10
    assert message in said.err
    house.record(house.load().runs[0].run_id, "ok")
    assert "attempts there: 1" in house("logs", house.load().runs[0].run_id, "--rank", "7").err


@pytest.mark.processes
def test_what_runs_wait_for_is_told_with_its_reason(house: House, tmp_path: Path) -> None:
    house.site.write_text("storage: storage\ncache: {path: cache}\nengine: docker\n")
    study = house.load()
    (name,) = {run.cell.dataset for run in study.runs}
    assert house.json("status")["hindrances"] == []
    images = Path(images_file(study) or "")
    log = write_log(study, images.stem, "20:51:03 image INFO one\n20:51:03 image ERROR image 'x:1' is not on this machine\n")
    plan = study.build_dir(name) / "logs" / "plan.log"
    plan.parent.mkdir(parents=True)
    spec = json.dumps({"source": "folder", "path": str(tmp_path / "nowhere")})
    argv = [sys.executable, "-m", "data_prep.build", "plan", "--name", name, "--spec", spec, "--build-dir", str(study.build_dir(name))]
    failed = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert failed.returncode != 0
    plan.write_text(failed.stderr)
    reason = failed.stderr.splitlines()[0].partition(" ERROR ")[2]
    assert str(tmp_path / "nowhere") in reason
    assert house.json("status")["hindrances"] == [
        {"what": "the images", "reason": "image 'x:1' is not on this machine", "log": str(log)},
        {"what": f"dataset {name}", "reason": reason, "log": str(plan)},
    ]
    assert f"waits for the images: image 'x:1' is not on this machine\n    log: logs/{log.name}" in house("status").out
    images.write_text("{}")
    (study.build_dir(name) / "dataset.json").write_text("{}")
    assert house.json("status")["hindrances"] == []


@pytest.mark.processes
@pytest.mark.parametrize("there", ["a pipe", "a device"])
def test_nothing_is_waited_for_where_a_file_should_lie(house: House, there: str) -> None:
    study = house.load()
    name = study.runs[0].run_id
    house.record(name, "ok")
    (dataset,) = {run.cell.dataset for run in study.runs}
    for path in (study.results_dir / "runs" / name / "lease.json", study.build_dir(dataset) / "logs" / "plan.log"):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path) if there == "a pipe" else path.symlink_to("/dev/zero")
    said = house.json("status")
    assert said["runs"][0]["state"] == "done"
    assert said["hindrances"] == []


def test_what_makes_the_numbers_of_a_run_doubtful_is_told_before_what_else_its_machines_did(house: House) -> None:
    study = house.load()
    (first, second, *_) = study.runs
    apart, busy = "rank 1 ended with other parameters than the other one", "local-0: others used 1.3 of 2 cores while it measured"
    house.record(first.run_id, "ok", busy=[busy], warnings=[apart, NOT_COMPARED, busy])
    house.record(second.run_id, "ok", warnings=[NOT_COMPARED])
    found = {state.run.run_id: state.reason for state in run_states(study)}
    assert (found[first.run_id], found[second.run_id]) == (f"{apart}; {busy}", None)


@pytest.mark.processes
def test_a_look_that_does_not_end_is_given_up(house: House, queue: Queue) -> None:
    house.on_slurm()
    queue.command("squeue", "exec sleep 5")  # part of the look: a storage that hangs takes root
    with pytest.raises(StorageError, match=r"where the runs of small stand: no answer within 0\.05 s"):
        status.print_status(house.load(), False, storage_s=0.05)


@pytest.mark.slow  # for the time that a controller is given
def test_runs_in_slurms_queue_are_queued_and_a_silent_controller_is_said_so(house: House, queue: Queue) -> None:
    house.on_slurm()
    study = house.load()
    names = [run.run_id for run in study.runs]
    house.record(names[0], "ok")
    mark = mark_of(study.name, str(study.results_dir))
    comment = f"rule_stage_train_push_wildcards_{names[1]} {mark} slipway-0a"
    queue.shows(queued(job_id="7", state="PENDING", reason="Resources", comment=comment))
    found = {run["run_id"]: (run["state"], run["reason"]) for run in house.json("status")["runs"]}
    assert found[names[1]] == ("queued", "job 7 waits: Resources")
    assert (found[names[0]][0], found[names[2]][0]) == ("done", "missing")
    queue.shows(queued(job_id="24", state="RUNNING", reason="Resources", nodes="n1", name=f"slipway-{study.name}-0badcafe"))
    assert house.json("status")["queued"] == 7
    assert "job 24 is running on n1; the run has not begun in it" in house("status").out
    hold(house, names[1], scheduler="slurm", job_id="31", host="n1", boot_id="x")
    queue.command("squeue", "exec tail -f /dev/null")
    said = house.json("status")
    assert "Slurm's controller does not answer" in said["scheduler"]
    states = {run["run_id"]: run["state"] for run in said["runs"]}
    assert [states[name] for name in names[:3]] == ["done", "running", "missing"]
