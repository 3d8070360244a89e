"""What a session starts, and what is refused of it, as values."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from base.errors import ConfigError, StorageError
from base.jsonfile import plain, publish_json
from cluster.schedulers.jobs import is_of_study
from cluster.types import Holder
from containers.engines.container_start import SHOWN
from extras.session import start
from extras.session.plan import addresses, session_cell, site_of, sockets, tunnel_argv
from extras.session.request import SessionRequest, State, all_sessions, is_gone, read_request, read_state, session_dir, write_state
from extras.session.supervisor import describe_ending, program_code
from tests.nobody import NOBODY
from workflow.run.plan import describe_framework
from workflow.run.record.outcome import Ending, RankEnd
from workflow.study.cell import Cell, RunLimits
from workflow.study.site import Cache, Site

SITE = Site(name="here", storage=Path("/nfs"), cache=Cache(path=Path("/local")), scheduler="slurm", device="cuda", gpus_per_node=4)
REQUEST = SessionRequest(
    session="program-1a2b3c",
    kind="program",
    command=("server", "--data", "{data}"),
    ports=(5000, 6006),
    site=SITE,
    nodes=1,
    gpus=2,
    dataset=None,
    dataset_spec={"source": "none"},
    image=None,
    python="python3",
    limits=RunLimits(walltime_s=3600.0),
    idle_s=None,
    push=False,
    host="login",
)


def test_the_cell_is_one_that_a_run_could_have() -> None:
    cell = session_cell(REQUEST, "/tmp/slipway-7/s/program-1a2b3c")
    assert Cell.from_json(json.loads(json.dumps(cell.to_json()))).program is not None
    framework = describe_framework(cell, "cuda")
    assert framework.command == ("{python}", "{lib}/slipway_session.py", "program", "server", "--data", "{data}")
    assert framework.launcher == "single"
    settings = json.loads(dict(framework.variables)["SLIPWAY_SESSION"])
    assert settings == {"directory": "/tmp/slipway-7/s/program-1a2b3c", "ports": [5000, 6006], "network": "own"}
    assert (cell.nodes, cell.gpus_per_node) == (1, 2)


def test_a_container_finds_the_sockets_at_one_place() -> None:
    request = changed(REQUEST, site=replace(SITE, engine="podman"), image="digits:6")
    framework = describe_framework(session_cell(request, "/tmp/x/s/y"), "cuda")
    assert framework.mounts == (("/tmp/x/s/y", "/run/slipway-session", True),)
    assert json.loads(dict(framework.variables)["SLIPWAY_SESSION"])["directory"] == "/run/slipway-session"
    assert framework.image == "digits:6"


def test_without_gpus_the_scheduler_is_asked_for_none() -> None:
    request = changed(REQUEST, gpus=0)
    assert site_of(request).gpus_per_node is None
    assert session_cell(request, "/x").device == "cpu"


def test_a_command_runs_on_every_node() -> None:
    request = changed(REQUEST, kind="run", nodes=3, ports=())
    (sidecar,) = describe_framework(session_cell(request, "/x"), "cuda").sidecars
    assert (sidecar.where, sidecar.ends) == ("each", "with-ranks")
    assert sidecar.command == ("{python}", "{lib}/slipway_session.py", "beside", *REQUEST.command)


def test_the_line_for_the_laptop() -> None:
    places = list(zip((27001, 27002), sockets(REQUEST, "/tmp/s"), strict=True))
    argv = tunnel_argv(places, "n1", "login")
    assert argv[-7:] == ("-L", "127.0.0.1:27001:/tmp/s/p5000.sock", "-L", "127.0.0.1:27002:/tmp/s/p6006.sock", "-J", "login", "n1")
    assert "-J" not in tunnel_argv(places, "n1", None)
    assert addresses(REQUEST, (27001,), "T") == ["http://127.0.0.1:27001/?token=T"]
    assert addresses(changed(REQUEST, kind="notebook"), (1,), "T") == ["http://127.0.0.1:1/lab?token=T"]


def test_its_job_is_no_submission_of_a_study_called_session() -> None:
    assert not is_of_study(start.job_name(REQUEST), "session")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": "x"}, "leave it out"),
        ({"gpus": 5}, "a node of the site 'here' has 4"),
        ({"nodes": 2}, "one program, on one node"),
        ({"ports": ()}, "--ports 5000,6006"),
        ({"ports": (22,)}, "from 1024 to 65535"),
        ({"ports": (5000, 5000)}, "different"),
        ({"command": ("a\nb",)}, "the end of a line"),
        ({"site": replace(SITE, walltime_s=60.0)}, "at most that"),
        ({"site": replace(SITE, device="cpu")}, "valid: 0"),
        ({"site": replace(SITE, engine="docker")}, "--image NAME"),
    ],
)
def test_what_cannot_be_done_is_refused_with_words(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        start.refuse(changed(REQUEST, **changes))


def test_the_token_is_in_a_file_that_only_the_user_can_read(tmp_path: Path) -> None:
    request = changed(REQUEST, site=replace(SITE, storage=tmp_path))
    directory = start.create(request)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "token").stat().st_mode & 0o777 == 0o600
    token = (directory / "token").read_text()
    assert len(token) >= 32
    assert token == token.strip()
    assert token not in (directory / "session.json").read_text()
    assert read_request(directory) == request
    assert read_state(directory) == State()
    write_state(directory, State(stage="ready", node="n1", told=1.0))
    assert read_state(directory).node == "n1"
    with pytest.raises(ConfigError, match="is no session"):
        session_dir(tmp_path, "../x")


def test_a_session_is_gone_when_its_job_is_not_in_the_queue_and_it_says_nothing() -> None:
    state = State(job_id="7", told=1000.0)
    assert not is_gone(state, None, 5000.0)
    assert not is_gone(state, ["7"], 5000.0)
    assert not is_gone(state, [], 1001.0)
    assert is_gone(state, [], 5000.0)


def test_a_session_is_gone_when_its_supervisor_is() -> None:
    holder = Holder(
        scheduler="local", job_id="1", restart_count=0, host="elsewhere", pid=1, pid_start=1, boot_id="b", pid_namespace="p", machine="m"
    )
    assert not is_gone(State(holder=holder, told=0.0), None, 1e6)  # nobody can tell from here


def test_endings_in_the_words_of_a_session() -> None:
    assert describe_ending(Ending(status="ok")) == ("its program has ended", 0)
    assert describe_ending(Ending(status="timeout", reason="x")) == ("its time is over", 0)
    assert describe_ending(Ending(status="cancelled", reason="nobody used it", planned=True)) == ("nobody used it", 0)
    assert describe_ending(Ending(status="error", reason="no")) == ("no", 17)
    assert describe_ending(Ending(status="error", reason=f"it ended with 125{SHOWN}: no such image")) == (
        "it ended with 125: no such image",
        17,
    )


def test_a_command_that_its_session_has_ended_did_not_end_well() -> None:
    over, stopped = Ending(status="timeout", reason="x"), Ending(status="cancelled", reason="nobody used it", planned=True)
    assert [program_code(ending, "run") for ending in (over, stopped, Ending(status="ok"))] == [25, 26, None]
    assert [program_code(ending, "notebook") for ending in (over, stopped)] == [None, None]
    failed = [Ending(status="error", rank_end=RankEnd(ranks=(0,), host="n1", exit_code=code, time=0.0)) for code in (5, -9)]
    assert [program_code(ending, "run") for ending in failed] == [5, 137]


def test_a_directory_of_another_user_is_no_session_of_ours_though_it_links_to_one(tmp_path: Path) -> None:
    ours, planted = session_dir(tmp_path, "shell-1a2b3c"), session_dir(tmp_path, "shell-4d5e6f")
    for directory in (ours, planted):
        directory.mkdir(parents=True)
    publish_json(ours / "session.json", plain(REQUEST))
    (planted / "session.json").symlink_to(ours / "session.json")
    write_state(planted, State(stage="ready", node="-oProxyCommand=x", directory="/tmp"))
    if os.geteuid() == 0:
        os.chown(planted, NOBODY, NOBODY)
        assert list(all_sessions(tmp_path)) == [ours]
    (planted / "session.json").unlink()
    assert list(all_sessions(tmp_path)) == [ours]


def test_a_session_whose_number_cannot_be_noted_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"^job 31 was started, but .*; end it with `scancel 31`, then try again$"):
        start._note(tmp_path / "gone", State(job_id="31"), "job 31", "scancel 31")
