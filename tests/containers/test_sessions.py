"""Sessions in containers on this machine, with each engine that acts: a shell, a server with ports, and nothing left of them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.engines import Engine
from extras.session.probe import get
from tests.containers.test_runs import containers
from tests.extras.session.test_sessions import Sessions, may_connect, of_session, wait
from tests.nobody import as_nobody

pytestmark = [pytest.mark.slow, pytest.mark.long]
DIGITS = Path(__file__).parents[1] / "extras" / "session" / "digits.py"
MOUNTED = "mounts: [{{source: {0}, target: /programs}}]\n"


@pytest.fixture
def sessions(tmp_path: Path, acting: Engine) -> Iterator[Sessions]:
    """Of a site whose containers see what is installed in a directory of the nodes."""
    if acting.NAME == "bare":
        pytest.skip("tests/extras/session is about bare")
    found = Sessions(tmp_path)
    found.site.write_text(found.site.read_text().replace("engine: bare", f"engine: {acting.NAME}") + MOUNTED.format(DIGITS.parent))
    yield found
    found.close()


def test_a_server_has_no_network_but_its_loopback_and_its_socket_is_outside(sessions: Sessions, acting: Engine, image: str) -> None:
    port = str(17000 + os.getpid() % 1000)
    words = ("serve", "--ports", port, "--image", image, "--time", "5m", "--push")
    started = sessions.start(*words, "--", "python3", "/programs/digits.py", "-p", port)
    assert started.returncode == 0, started.stderr
    (directory,), state = sessions.all(), sessions.state()
    path, token = f"{state['directory']}/p{port}.sock", (directory / "token").read_text()
    assert get(path, "/", "")[0] == 403
    status, body = get(path, "/", token)
    found = json.loads(body)
    assert (status, found["interfaces"]) == (200, ["lo"])
    assert found["uid"] == os.geteuid()
    assert found["root_refuses"] is not None
    assert found["work"] == "/slipway/out/work"
    assert token not in json.dumps(found["environ"])
    if os.geteuid() == 0:
        outside = sessions.directory / "outside"
        outside.mkdir()
        assert as_nobody(outside, lambda: may_connect(path)) == "PermissionError"
    assert sessions.command("stop", directory.name) == 0
    assert (directory / "files" / "work" / "model.txt").read_text() == "trained\n"
    wait(lambda: not containers(acting.NAME) and not of_session(directory.name) and not Path(state["directory"]).exists())


def test_a_shell_is_inside_of_the_container(sessions: Sessions, acting: Engine, image: str) -> None:
    words = ("shell", "--image", image, "--time", "5m", "--push")
    assert sessions.type(*words, lines="echo $SLIPWAY_OUT $((6*7)) > answer; ls /programs >> answer; exit 3\n") == 3
    (directory,) = sessions.all()
    wait(lambda: sessions.state()["stage"] == "ended")
    answer = (directory / "files" / "work" / "answer").read_text().splitlines()
    assert answer[0] == "/slipway/out 42"
    assert DIGITS.name in answer
    assert containers(acting.NAME) == []


def test_a_command_ends_with_its_code_and_its_words(sessions: Sessions, image: str) -> None:
    found = sessions.start("run", "--image", image, "--", "sh", "-c", "echo in $SLIPWAY_OUT; exit 5")
    assert (found.returncode, found.stdout) == (5, "in /slipway/out\n"), found.stderr
