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

ROOT = Path(__file__).parents[3]


def hold(house: House, run_id: str, pid: int = 0, attempt: int = 1, **changes: object) -> None:
    """A lease of a process of this machine, by default ours."""
    run_dir = house.load().results_dir / "runs" / run_id
    run_dir.mkdir(parents=True, exist_ok=True)
    lease = new_lease(holder_of(os.getpid(), "local", "1", 0), attempt).to_json()
    (run_dir / "lease.json").write_text(json.dumps({**lease, **({"pid": pid} if pid else {}), **changes}))


@pytest.mark.processes
def test_every_state(house: House) -> None:
    study = house.load()
    names = [run.run_id for run in study.runs]
    house.record(names[0], "ok")
    house.record(names[1], "nan", status_reason="rank 1 on here met a loss that is not a number\nits last lines:\nx")
    house.record(names[2], "storage", kind="prevented", status_reason="storage does not answer")
    hold(house, names[3])
    house.record(names[4], "ok", published=False)
    hold(house, names[5], pid=2**22 - 1)
    torn = house.record(names[6], "ok")
    (torn.parents[1] / "record.json").write_text('{"stat')
    (torn / "record.json").write_text('{"stat')
    said = house.json("status")
    found = {run["run_id"]: run for run in said["runs"]}
    assert list(found) == [f"{cell.cell_id}-r{repeat}" for cell in study.cells for repeat in (1, 2)], "as tables have them"
    assert [found[name]["state"] for name in names] == ["done", "failed", "prevented", "running", "missing", "missing", "failed", "missing"]
    assert found[names[1]]["reason"] == "rank 1 on here met a loss that is not a number"
    assert found[names[1]]["log"] == str(study.results_dir / "runs" / names[1] / "attempts" / "1" / "logs")
    assert found[names[2]]["status"] == "storage"
    assert f"process {os.getpid()}" in found[names[3]]["reason"]
    assert "not published" in found[names[4]]["reason"]
    assert found[names[5]]["reason"] == "started, and left no record"
    assert found[names[6]]["status"] == "unreadable"
    assert found[names[7]]["reason"] is None
    assert {key: said[key] for key in ("done", "failed", "prevented", "running", "missing")} == {
        "done": 1, "failed": 2, "prevented": 1, "running": 1, "missing": 3,
    }  # fmt: skip
    text = house("status").out
    assert "small: 8 runs: 1 done, 2 failed, 1 prevented, 1 running, 3 missing" in text
    assert "failed (nan)" in text


@pytest.mark.processes
def test_a_newer_attempt_speaks_for_the_run(house: House) -> None:
    name = house.load().runs[0].run_id
    house.record(name, "storage", kind="prevented", attempt=1)
    house.record(name, "node_lost", kind="prevented", attempt=2)
    run = house.json("status")["runs"][0]
    assert (run["state"], run["status"], run["attempt"]) == ("prevented", "node_lost", 2)


@pytest.mark.processes
def test_a_holder_of_whom_nothing_is_known_runs(house: House) -> None:
    name = house.load().runs[0].run_id
    hold(house, name, boot_id="elsewhere", host="other-host")
    run = house.json("status")["runs"][0]
    assert run["state"] == "running"
    assert "cannot be seen from here" in run["reason"]


@pytest.mark.processes
def test_a_torn_lease_is_nobodys(house: House) -> None:
    name = house.load().runs[0].run_id
    hold(house, name)
    (house.load().results_dir / "runs" / name / "lease.json").write_text("")
    assert house.json("status")["runs"][0]["state"] == "missing"


def write_logs(directory: Path) -> None:
    (directory / "logs" / "rank-0.log").write_bytes(b"first\nred \x1b[31m text \xff\n" + b"x" * 100_000 + b"\nlast\n")
    (directory / "logs" / "rank-1.log").write_text("other rank\n")
    (directory / "logs" / "node-0.log").write_text("node\n")


def test_logs_of_the_latest_attempt(house: House) -> None:
    study = house.load()
    name = study.runs[0].run_id
    write_logs(house.record(name, "storage", kind="prevented", attempt=1))
    (house.record(name, "ok", attempt=10) / "logs" / "rank-0.log").write_text("tenth\n")
    supervisor = study.results_dir / "logs" / f"{name}.log"
    supervisor.parent.mkdir()
    supervisor.write_text("supervisor said\n")
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


def test_logs_of_a_run_that_runs_here(house: House) -> None:
    name = house.load().runs[0].run_id
    for node in (0, 1):
        for study in (house.load().name, "another-of-the-same-cell"):
            work = house.root / "cache" / f"local-{node}" / "runs" / f"{name}-a1-{study}"
            logs = work / "own" / "logs"
            logs.mkdir(parents=True)
            run_dir = house.load().results_dir.with_name(study) / "runs" / name
            (work / "run.json").write_text(json.dumps({"run_dir": str(run_dir), "attempt": 1}))
            (logs / f"rank-{node}.log").write_text(f"I am {node} of {study}\n")
    out = house("logs", name).out
    assert f"I am 0 of {house.load().name}\n" in out
    assert f"I am 1 of {house.load().name}\n" in out
    assert "another" not in out


def test_logs_of_two_attempts_here_are_both_shown(house: House) -> None:
    """The result of the first waits for storage while the second one runs."""
    name = house.load().runs[0].run_id
    for attempt in (1, 2):
        work = house.root / "cache" / "local-0" / "runs" / f"{name}-a{attempt}"
        (work / "own" / "logs").mkdir(parents=True)
        run_dir = house.load().results_dir / "runs" / name
        (work / "run.json").write_text(json.dumps({"run_dir": str(run_dir), "attempt": attempt}))
        (work / "own" / "logs" / "rank-0.log").write_text(f"I am attempt {attempt}\n")
    out = house("logs", name).out
    assert "I am attempt 1\n" in out
    assert "I am attempt 2\n" in out


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


def test_a_run_is_named_by_its_beginning(house: House) -> None:
    said = house("logs", "lenet-digits")
    assert said.code == 10
    assert "the names of 8 runs begin so" in said.err


@pytest.mark.processes
def test_what_runs_wait_for_is_told_with_its_reason(house: House, tmp_path: Path) -> None:
    house.site.write_text("storage: storage\ncache: {path: cache}\nengine: docker\n")
    study = house.load()
    (name,) = {run.cell.dataset for run in study.runs}
    assert house.json("status")["hindrances"] == []
    images = Path(images_file(study) or "")
    log = study.results_dir / "logs" / f"{images.stem}.log"
    log.parent.mkdir(parents=True)
    log.write_text("20:51:03 image INFO one\n20:51:03 image ERROR image 'x:1' is not on this machine\n")
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


@pytest.mark.processes
def test_what_else_its_machines_did_while_a_run_measured_is_told(house: House) -> None:
    name = house.load().runs[0].run_id
    words = "local-0: others used 1.3 of 2 cores while it measured (\x1b[31mvim of bob)"
    house.record(name, "ok", busy=[words])
    (run,) = [run for run in house.json("status")["runs"] if run["run_id"] == name]
    assert (run["state"], run["reason"]) == ("done", words)


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
    house.site.write_text("storage: storage\ncache: {path: /local/slipway}\nscheduler: slurm\ndevice: cpu\n")
    queue.command("squeue", "exec sleep 5")  # part of the look: a storage that hangs takes root
    with pytest.raises(StorageError, match=r"where the runs of small stand: no answer within 0\.05 s"):
        status.print_status(house.load(), False, storage_s=0.05)


@pytest.mark.slow  # for the time that a controller is given
def test_runs_in_slurms_queue_are_queued_and_a_silent_controller_is_said_so(house: House, queue: Queue) -> None:
    house.site.write_text("storage: storage\ncache: {path: /local/slipway}\nscheduler: slurm\ndevice: cpu\n")
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
