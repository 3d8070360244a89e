"""Sessions of a desk, as their user has them: started on the login node, opened in the laptop's browser; and whoever else looks."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.minicluster.spec import USER
from tests.slurm import intruder
from tests.slurm.desk import Desk, other_user
from tests.workflow.report.browser import Browser, find_chromium

LIMIT_S: Final = 120.0


def slipway(desk: Desk, *words: str) -> str:
    """As the user types it on the login node; what it says."""
    argv = ["slipway", *words, "--site", str(desk.cluster.site_file)]
    done = desk.cluster.exec("login", argv, user=USER, cwd=desk.cluster.spec.home, timeout=600)
    assert done.returncode == 0, done
    return str(done.stdout)


@dataclass(frozen=True, kw_only=True)
class Session:
    """One that answers, and the two lines that it printed."""

    name: str
    line: str
    url: str
    node: str
    sockets: list[str]
    directory: Path
    """On storage."""

    @property
    def token(self) -> str:
        return self.url.rpartition("token=")[2]

    @property
    def port(self) -> int:
        """On the laptop."""
        return int(found_in(r"127.0.0.1:(\d+)/", self.url))


def found_in(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


@contextmanager
def session(desk: Desk, *words: str) -> Iterator[Session]:
    """`slipway session WORDS`; stopped at the end."""
    said = slipway(desk, "session", *words)
    (seen,) = (one for one in json.loads(slipway(desk, "session", "ls", "--json")) if said.find(f"session {one['session']}: job") >= 0)
    try:
        yield Session(
            name=seen["session"],
            line=found_in("on your laptop: (.*)", said),
            url=found_in(r"then open: +(http://\S+)", said),
            node=seen["node"],
            sockets=seen["sockets"],
            directory=Path(seen["directory"]),
        )
    finally:
        slipway(desk, "session", "stop", seen["session"])


@contextmanager
def opened(desk: Desk, one: Session, directory: Path) -> Iterator[Browser]:
    """Its page in a browser of the laptop, by the printed line."""
    program = find_chromium()
    assert program is not None, "Chromium is in tests/debian-packages.txt"
    with desk.tunnel(one.line) as tunnel:
        ask = [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {one.port})).close()"]
        end = time.monotonic() + LIMIT_S
        while desk.on_laptop(*ask).returncode:
            assert tunnel.poll() is None, "the printed line has ended"
            assert time.monotonic() < end, "no tunnel"
        with desk.browser(program, directory) as page:
            page.open(one.url)
            yield page


def settle(page: Browser, condition: str) -> None:
    """Until it holds."""
    end = time.monotonic() + LIMIT_S
    while not page.evaluate(f"!!({condition})"):
        assert time.monotonic() < end, f"{condition}: {page.evaluate('document.body.innerText')}"
        time.sleep(0.2)


def screenshot(page: Browser) -> bytes:
    """A PNG."""
    return base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])


def intrude(desk: Desk, where: str, as_user: bool, **words: Any) -> dict[str, Any]:
    """What is found on a host, or on `laptop` and `stranger`; `as_user`: by another user than that of the session, else by root."""
    python = ["/usr/bin/python3", "-c", Path(intruder.__file__).read_text()]
    argv = other_user(*python) if as_user else python
    options = {"input": json.dumps(words), "timeout": 300}
    on = {"laptop": desk.on_laptop, "stranger": desk.on_stranger}.get(where)
    done = desk.cluster.exec(where, argv, **options) if on is None else on(*argv, **options)
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def places_of_token(desk: Desk, one: Session) -> set[str]:
    """All files of all hosts and of storage that have it; those of the session's own directory on the node as `its/...`."""
    spec = desk.cluster.spec
    found = intruder.files_with(one.token.encode(), [str(spec.root)])
    own = f"{spec.node_directory(one.node)}{Path(one.sockets[0]).parent}/"
    return {re.sub(r"\d+", "N", f"its/{path.removeprefix(own)}") if path.startswith(own) else path for path in found}


def assert_nobody_else_gets_anything(desk: Desk, one: Session, pages: dict[str, str]) -> None:
    """`pages`: of the tunnel's port, and how the answer to who has no token begins. To be called while the page is open on the laptop."""
    spec = desk.cluster.spec
    roots = [str(spec.shared / "slipway"), "/tmp", "/local", "/run"]
    on_node = intrude(desk, one.node, True, token=one.token, roots=roots, sockets=one.sockets)
    ports = [(spec.address(one.node), port) for port in on_node["listening"]]
    on_login = intrude(desk, "login", True, token=one.token, roots=roots, addresses=ports)
    on_network = intrude(desk, "stranger", True, token=one.token, addresses=ports)
    on_laptop = intrude(desk, "laptop", True, token=one.token, pages=[("127.0.0.1", one.port, target) for target in pages])
    assert on_node["sockets"] == ["PermissionError"] * len(one.sockets)
    for found in (on_node, on_login):
        assert (found["proc"], found["environs"], found["files"]) == ([], [], []), found
    for found in (on_node, on_login, on_network):
        assert found["ports"], "those of Slurm and sshd at least"
        answers = [answer for answer in found["ports"].values() if "HTTP/" in answer]
        assert answers == [], "no port of the cluster has a page"
    starts = [answer.split("\r\n")[0] for answer in on_laptop["pages"]]
    assert starts == list(pages.values())
    for where in ("login", *desk.cluster.nodes):
        assert intrude(desk, where, False, token=one.token)["proc"] == [], f"{where}: what root sees of all processes"
