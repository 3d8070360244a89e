"""What a session that is started, and looked at, leaves on storage and asks of its scheduler. Slurm's commands are stand-ins on PATH."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from base.errors import RemoteError
from cluster.types import Holder
from extras.session import start
from extras.session.command import Queue, enter
from extras.session.request import STATE, SessionView, State, sessions_dir, write_state
from tests.extras.session.test_plan import REQUEST, SITE
from workflow.commands.main import run

pytestmark = pytest.mark.processes

SITE_FILE = "storage: {0}/storage\ncache: {{path: {0}/cache}}\nscheduler: slurm\nqueue: main\nengine: bare\ndevice: cpu\n"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's, which refuse everything and write down that they were called."""
    for name in ("sbatch", "scontrol", "squeue", "scancel"):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/calls\necho '{name}: error: invalid partition specified' >&2\nexit 1\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path / "calls"


def test_a_session_that_cannot_be_submitted_leaves_nothing(
    tmp_path: Path, commands: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    site = tmp_path / "site.yaml"
    site.write_text(SITE_FILE.format(tmp_path))
    assert run(["session", "run", "--site", str(site), "--", "true"]) == 12
    assert "invalid partition specified" in capsys.readouterr().err
    assert "sbatch" in commands.read_text()
    assert list(sessions_dir(tmp_path / "storage").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [(["shell"], "slipway session shell --detach"), (["run", "--idle", "3s", "--", "true"], "--idle: nobody uses a command")],
    ids=["a shell without a terminal", "a command is never idle"],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "isatty", lambda _descriptor: False)
    monkeypatch.setattr("extras.session.command._submit", lambda *_: pytest.fail("it was started"))
    (tmp_path / "site.yaml").write_text("storage: storage\ncache: {path: cache}\n")
    assert run(["session", words[0], "--site", str(tmp_path / "site.yaml"), *words[1:]]) == 10
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["site.yaml"]


def test_the_note_of_a_submission_takes_the_place_of_nothing(tmp_path: Path) -> None:
    (tmp_path / STATE).symlink_to("nowhere")  # not there when it is looked for, and there when it is written: as a quick supervisor's
    start._note(tmp_path, State(job_id="7"), "job 7", "scancel 7")
    assert (tmp_path / STATE).is_symlink()


def test_who_waits_for_a_session_reads_its_files_and_does_not_ask_the_scheduler_each_second(tmp_path: Path, commands: Path) -> None:
    directory = start.create(changed(REQUEST, site=replace(SITE, storage=tmp_path)))
    holder = Holder(scheduler="slurm", job_id="7", restart_count=0, host="n1", pid=1, pid_start=1, boot_id="b", pid_namespace="p")
    write_state(directory, State(stage="ready", job_id="7", holder=holder, told=0.0))
    queue = Queue()
    assert [queue.look(directory).state.stage for _ in range(3)] == ["ready"] * 3
    assert not commands.exists()
    write_state(directory, State(stage="ended", job_id="7", holder=holder, reason="its program has ended", told=1.0))
    assert queue.look(directory).is_over


def test_a_node_that_ssh_does_not_reach_is_told_with_another_way_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\necho 'connect to host n7 port 22: Connection refused' >&2\nexit ${SSH_CODE:-255}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    request = changed(REQUEST, kind="shell", ports=(), site=replace(SITE, storage=tmp_path, scheduler="slurm"))
    directory = start.create(request)
    state = State(stage="ready", job_id="4711", node="n7", directory="/run/s", told=1.0)
    write_state(directory, state)
    with pytest.raises(RemoteError) as told:
        enter(SessionView(directory=directory, request=request, state=state))
    assert "srun --jobid=4711 --overlap -N1 -n1 -w n7 --pty " in str(told.value)
    assert f"slipway session stop {request.session}" in str(told.value)
    monkeypatch.setenv("SSH_CODE", "3")
    with pytest.raises(SystemExit, match="3"):
        enter(SessionView(directory=directory, request=request, state=state))


def test_sessions_of_a_study_without_a_site_file_are_found_where_its_results_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/study.yaml").touch()
    request = changed(REQUEST, site=replace(SITE, storage=tmp_path / "mine/storage"))
    start.create(request)
    assert run(["session", "ls", "--json"]) == 0
    assert request.session not in capsys.readouterr().out
    assert run(["session", "ls", "--json", "--study", "mine/study.yaml"]) == 0
    assert request.session in capsys.readouterr().out
