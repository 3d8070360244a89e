"""Sessions on this machine: started, reached by their sockets, shown, ended, and nothing of them left; nobody else gets in."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from cluster import processes
from extras.session import start
from extras.session.plan import supervisor_argv
from extras.session.probe import get
from tests.extras.session.test_plan import REQUEST
from tests.minicluster.waiting import wait_until
from tests.nobody import NOBODY, as_nobody
from tests.terminal import Terminal
from workflow.commands.main import run
from workflow.study.site import Cache, Site

pytestmark = pytest.mark.slow
STAND_IN = Path(__file__).with_name("stand_in.py")
ROOT = Path(__file__).parents[3]
SITE = """
storage: {0}/storage
cache: {{path: {0}/cache}}
scheduler: local
engine: bare
device: cpu
deadline_margin: 2s
"""
LIMIT_S = 120.0
wait = partial(wait_until, limit_s=LIMIT_S, what="what the test waits for")


class Sessions:
    """Of one test, on a storage of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.site = directory / "site.yaml"
        self.site.write_text(SITE.format(directory))

    def start(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`slipway session WORDS`."""
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        return subprocess.run(self.argv(*words), **streams, timeout=LIMIT_S, cwd=ROOT, check=False)

    def type(self, *words: str, lines: str) -> int:
        """The same in a terminal, where `lines` are typed at the prompt; its exit code."""
        terminal = Terminal(partial(subprocess.Popen, self.argv(*words), cwd=ROOT))
        try:
            terminal.until(r"[$#>] ")
            terminal.type(lines)
            return terminal.ended()
        finally:
            terminal.close()

    def argv(self, first: str, *rest: str) -> list[str]:
        """Of the command."""
        return [sys.executable, "-P", "-m", "workflow.commands.main", "session", first, "--site", str(self.site), *rest]

    def command(self, *words: str) -> int:
        """The same, in this process."""
        first, *rest = words
        return run(["session", first, "--site", str(self.site), *rest])

    def all(self) -> list[Path]:
        """Their directories."""
        return sorted((self.directory / "storage" / "sessions").iterdir())

    def state(self, index: int = 0) -> dict[str, Any]:
        """As its supervisor said last."""
        found: dict[str, Any] = json.loads((self.all()[index] / "state.json").read_text())
        return found

    def close(self) -> None:
        """End those that the test has left."""
        for directory in self.all() if (self.directory / "storage").exists() else []:
            holder = json.loads((directory / "state.json").read_text()).get("holder")
            if holder and processes.is_alive(holder["pid"], holder["pid_start"]):
                os.kill(holder["pid"], signal.SIGTERM)
                wait(partial(has_ended, holder["pid"], holder["pid_start"]))


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    found = Sessions(tmp_path)
    yield found
    found.close()


def has_ended(pid: int, start: int) -> bool:
    """Whether that process is gone."""
    return not processes.is_alive(pid, start)


def of_session(name: str) -> list[int]:
    """The processes of a session: by the tag in their environment."""
    return processes.tagged("SLIPWAY_ATTEMPT", lambda tag: tag.startswith(name))


def ask(path: str, text: str) -> bytes:
    """All that is answered to a request."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(path)
        link.sendall(text.encode())
        found = b""
        while piece := link.recv(1 << 16):
            found += piece
        return found


def secret_places(pids: Sequence[int]) -> bytes:
    """What others could read of processes: argv, and what root or the user could, the environment."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for pid in pids for name in ("cmdline", "environ"))


def test_a_server_behind_its_socket(sessions: Sessions, capsys: pytest.CaptureFixture[str]) -> None:
    port = 17000 + os.getpid() % 1000
    started = sessions.start("serve", "--ports", str(port), "--time", "5m", "--", sys.executable, str(STAND_IN), str(port))
    assert started.returncode == 0, started.stderr
    (directory,), state = sessions.all(), sessions.state()
    token = (directory / "token").read_text()
    path = f"{state['directory']}/p{port}.sock"
    assert "-L 127.0.0.1:" in started.stdout
    assert f"{path} {os.uname().nodename}" in started.stdout
    assert f"?token={token}" in started.stdout

    # with the token: pages, bodies, cookies, an echo
    assert get(path, "/page", token)[0] == 200
    assert ask(path, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 403")
    assert ask(path, "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: token wrong\r\n\r\n").startswith(b"HTTP/1.1 403")
    assert ask(path, "GET /?token= HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 403")
    given = ask(path, f"GET /a?b=1&token={token} HTTP/1.1\r\nHost: x\r\n\r\n").decode()
    assert given.startswith("HTTP/1.1 302")
    assert "Location: /a?b=1\r\n" in given
    cookie = next(line for line in given.split("\r\n") if line.startswith("Set-Cookie")).split(" ")[1].rstrip(";")
    page = ask(path, f"GET /a HTTP/1.1\r\nHost: x\r\nCookie: other=1; {cookie}\r\n\r\n").decode()
    assert page.endswith("/a other=1 None")  # the program does not see what is ours
    posted = ask(path, f"POST / HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\nContent-Length: 5\r\n\r\nhello")
    assert posted.endswith(b"hello")
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(path)
        link.sendall(f"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\nConnection: Upgrade\r\nCookie: {cookie}\r\n\r\n".encode())
        with link.makefile("rb") as lines:
            assert lines.readline().startswith(b"HTTP/1.1 101")
            while lines.readline() != b"\r\n":
                continue
            link.sendall(b"one\n")
            assert lines.readline() == b"echo one\n"

    # nobody else: no port on this machine, no socket for another user, no token to be found
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5).close()
    if os.geteuid() == 0:
        outside = sessions.directory / "outside"
        outside.mkdir()
        assert as_nobody(outside, lambda: may_connect(path)) == "PermissionError"
    assert Path(path).stat().st_mode & 0o777 == 0o600
    pids = of_session(directory.name)
    assert len(pids) >= 3
    assert token.encode() not in secret_places(pids)
    assert token not in (directory / "log").read_text()
    assert token not in (directory / "state.json").read_text()

    assert sessions.command("ls") == 0
    shown = capsys.readouterr().out
    assert "ready" in shown
    assert path in shown
    assert sessions.command("stop", directory.name) == 0
    assert "it was stopped" in capsys.readouterr().out
    wait(lambda: not of_session(directory.name) and not Path(state["directory"]).exists())
    assert not (directory / "token").exists()
    assert not [*(sessions.directory / "cache").rglob("out")]
    assert sessions.command("ls", "--json") == 0
    (seen,) = json.loads(capsys.readouterr().out)
    assert (seen["stage"], seen["sockets"]) == ("ended", [])


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))), reason="needs root, to become another user"
)
def test_a_port_is_closed_to_other_users_on_a_host_that_has_only_a_loopback(sessions: Sessions) -> None:
    port = str(17000 + os.getpid() % 1000)
    script = 'ip link set lo up && exec "$@"'
    words = ("serve", "--ports", port, "--time", "5m", "--", sys.executable, str(STAND_IN), port)
    host = ["unshare", "--net", "sh", "-c", script, "sh", *sessions.argv(*words)]
    started = subprocess.run(host, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
    assert started.returncode == 0, started.stderr
    state = sessions.state()
    assert get(f"{state['directory']}/p{port}.sock", "/page", (sessions.all()[0] / "token").read_text())[0] == 200
    other_user = ["nsenter", "--net", "--target", str(state["holder"]["pid"]), "--setuid", str(NOBODY), "--setgid", str(NOBODY)]
    connect = subprocess.run([*other_user, "bash", "-c", f"</dev/tcp/127.0.0.1/{port}"], capture_output=True, text=True, check=False)
    assert connect.returncode != 0
    assert "Connection refused" in connect.stderr


def may_connect(path: str) -> str:
    """As whoever calls it."""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
    except OSError as error:
        return type(error).__name__
    return "connected"


def test_a_shell_is_entered_and_its_end_ends_the_session(sessions: Sessions) -> None:
    assert sessions.type("shell", "--time", "5m", "--push", lines="echo $((6*7)) > answer; exit 3\n") == 3
    (directory,) = sessions.all()
    wait(lambda: sessions.state()["stage"] == "ended")
    assert (directory / "files" / "work" / "answer").read_text() == "42\n"
    assert sessions.state()["exit_code"] == 0


def test_a_command_runs_on_every_node_and_what_it_writes_is_pushed(sessions: Sessions) -> None:
    found = sessions.start(
        "run", "--nodes", "2", "--time", "5m", "--", "bash", "-c", "echo $SLIPWAY_NODE_RANK | tee rank-$SLIPWAY_NODE_RANK; cat"
    )
    assert found.returncode == 0, found.stderr
    files = {path.name for path in sessions.all()[0].rglob("files/**/*")}
    assert {"rank-0", "rank-0.log"} <= files


def test_what_a_command_prints_is_shown_while_it_runs_and_its_failure_ends_ours(sessions: Sessions) -> None:
    go = sessions.directory / "go"
    script = 'echo first; until [ -e "$0" ]; do sleep 0.1; done; echo second >&2; exit 5'
    argv = sessions.argv("run", "--time", "5m", "--", "bash", "-c", script, str(go))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as shown:
        assert shown.stdout is not None
        assert shown.stdout.readline() == b"first\n"
        assert sessions.state()["stage"] == "ready"
        go.touch()
        out, err = shown.communicate(timeout=LIMIT_S)
    assert (out, shown.returncode) == (b"second\n", 5)
    assert b"exit code 5" in err


def test_a_session_goes_on_where_only_its_nodes_can_read_the_path_of_the_cache(tmp_path: Path) -> None:
    site = Site(
        name="here",
        storage=tmp_path / "storage",
        cache=Cache(path=Path("$ONLY_ON_NODES/cache"), place="site.yaml:1"),
        scheduler="local",
        setup=(f"export ONLY_ON_NODES={tmp_path}",),
    )
    request = changed(REQUEST, kind="run", command=("sh", "-c", "sleep 3; echo 42 > answer"), ports=(), site=site, gpus=0, push=True)
    directory = start.create(request)
    argv = supervisor_argv(sys.executable, str(directory))
    ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (directory / "files" / "work" / "answer").read_text() == "42\n"
    assert "what the command printed is not shown: cache.path: " in ended.stderr


@pytest.mark.long
def test_what_storage_does_not_take_stays_on_the_node_and_is_delivered(sessions: Sessions, capsys: pytest.CaptureFixture[str]) -> None:
    script = 'echo 42 > answer; for one in "$0"/sessions/run-*; do mkdir "$one/files" && touch "$one/files/taken"; done'
    found = sessions.start("run", "--time", "20s", "--", "bash", "-c", script, str(sessions.directory / "storage"))
    assert found.returncode == 18, found.stderr
    assert "could not be pushed" in found.stderr
    assert "slipway reap --push" in found.stderr
    (directory,) = sessions.all()
    assert sessions.state()["waits_on_nodes"]
    assert not list(directory.glob(".files*")), "no half of it is left"
    (directory / "files" / "taken").unlink()
    (directory / "files").rmdir()
    assert run(["reap", "--push", "--site", str(sessions.site)]) == 0
    assert "1 of 1 waiting result delivered" in capsys.readouterr().out
    assert (directory / "files" / "work" / "answer").read_text() == "42\n"


def test_a_command_whose_time_is_over_has_not_ended_well(sessions: Sessions) -> None:
    for time_limit in ("3s", "15s", "60s"):  # a loaded machine may need all of it to start the command
        found = sessions.start("run", "--time", time_limit, "--", "bash", "-c", "echo half > answer; sleep 600; echo done > answer")
        assert found.returncode == 25, found.stderr
        assert "its time is over" in found.stderr
        answers = [path.read_text() for path in (sessions.directory / "storage" / "sessions").glob("*/files/work/answer")]
        if answers:
            break
    assert answers == ["half\n"]


def test_a_program_that_is_not_there_is_named(sessions: Sessions) -> None:
    found = sessions.start("tensorboard", "--logdir", str(sessions.directory), "--python", "/usr/bin/python3")
    assert found.returncode == 17
    assert "pip install tensorboard" in found.stderr
    assert "its dataset" not in found.stderr  # 44 would say that the node's disk had failed


def test_a_supervisor_that_is_killed_leaves_nothing(sessions: Sessions, capsys: pytest.CaptureFixture[str]) -> None:
    assert sessions.start("serve", "--ports", "17999", "--", sys.executable, str(STAND_IN), "17999").returncode == 0
    (directory,), state = sessions.all(), sessions.state()
    os.kill(state["holder"]["pid"], signal.SIGKILL)
    wait(lambda: not of_session(directory.name))
    assert sessions.command("ls") == 0
    assert "ended: its job is gone" in capsys.readouterr().out
    assert not (directory / "token").exists()
    assert sessions.start("run", "--", "true").returncode == 0
    assert not Path(state["directory"]).exists()  # the next session of this node has swept it


def test_nobody_uses_it(sessions: Sessions) -> None:
    found = sessions.start("serve", "--idle", "1s", "--ports", "17998", "--", sys.executable, str(STAND_IN), "17998")
    assert found.returncode == 0, found.stderr
    wait(lambda: sessions.state()["stage"] == "ended")
    assert sessions.state()["reason"] == "nobody used it for 1.0 s"


@pytest.mark.long
@pytest.mark.parametrize(("kind", "name", "page"), [("notebook", "s", "/api/status"), ("tensorboard", "p6006", "/data/runs")])
def test_a_real_tool_is_behind_its_socket_and_asks_for_the_token(sessions: Sessions, kind: str, name: str, page: str) -> None:
    tools = os.environ.get("SLIPWAY_SESSION_TOOLS")
    if tools is None:
        pytest.skip("JupyterLab is not installed here: SLIPWAY_SESSION_TOOLS names an environment that has it")
    logdir = ["--logdir", str(sessions.directory)] if kind == "tensorboard" else []
    found = sessions.start(kind, *logdir, "--python", f"{tools}/bin/python", "--time", "5m")
    assert found.returncode == 0, found.stderr
    (directory,), state = sessions.all(), sessions.state()
    path, token = f"{state['directory']}/{name}.sock", (directory / "token").read_text()
    assert get(path, page, token)[0] == 200
    assert get(path, page, "wrong")[0] == 403
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert token.encode() not in secret_places(of_session(directory.name))
    assert sessions.command("stop", directory.name) == 0
