"""The child that brings an image in, as the node program's loop sees it: answered, failed, slow, ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cluster import processes
from workflow.run.link.event_loop import Loop
from workflow.run.link.messages import name_of
from workflow.run.node.preparation import ImageChild, Loaded

pytestmark = pytest.mark.slow
END_S = 20.0


def load(code: str, **options: Any) -> tuple[list[Any], list[str]]:
    """The end of a child that runs `code`, and what it said; it gets the archive when it asks."""
    told: list[Any] = []
    said: list[str] = []

    def bring() -> None:
        said.append("wants")
        child.bring("/cache/a.tar.zst")

    loop = Loop()
    argv = (sys.executable, "-c", code)
    child = ImageChild(loop, argv, lambda message: said.append(name_of(message)), bring, lambda *end: told.append(end), **options)
    assert loop.until(lambda: bool(told), END_S)
    return told, said


ANSWER = '{"image_id": "sha256:1", "start": "sha256:1", "seconds": 1}'


def test_its_answer_is_told_once_and_how_far_its_own_copy_is() -> None:
    told, said = load(f"print('{{\"progress\": [0, 9]}}'); print('{ANSWER}')")
    assert told == [(Loaded(image_id="sha256:1", start="sha256:1", seconds=1.0), None)]
    assert said == ["progress"]


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ('print(\'{"error": ["NotEnoughSpace", "no room"]}\'); raise SystemExit(15)', "NotEnoughSpace", "no room"),
        ("raise SystemExit(3)", "ContainerError", "ended with 3 and without an answer"),
        ("print('{')", "ContainerError", "without an answer"),
        (f"print('{ANSWER}'); raise SystemExit(1)", "ContainerError", "ended with 1"),
        ("print('{\"image_id\": 1}')", "ContainerError", "said {'image_id': 1}, which is none of its lines"),
        ("print('{\"error\": 3}')", "ContainerError", "said {'error': 3}, which is none of its lines"),
        ("print('{\"waiting\": true}')", "ContainerError", "ended with 0 and without an answer"),
    ],
    ids=["error", "silent", "torn", "answer of a failure", "odd answer", "odd error", "half way"],
)
def test_its_error_is_named(code: str, name: str, words: str) -> None:
    ((answer, error),) = load(code)[0]
    assert answer is None
    assert error[0] == name
    assert words in error[1]


def test_one_that_takes_too_long_is_ended_and_said_to_be() -> None:
    told, said = load("import time; time.sleep(600)", limit_s=0.05)
    assert told == [(None, ("ContainerError", "the image was not here after 0.05 s; its load was ended"))]
    assert said == []


WANTS = "import sys; print('{\"wants\": 9}', flush=True); line = sys.stdin.readline()"


def test_it_gets_the_archive_when_it_asks_and_says_that_it_waits_for_another() -> None:
    told, said = load(f"print('{{\"waiting\": true}}'); {WANTS}; print('{ANSWER}'.replace('sha256:1', line.split('\"')[3]))")
    assert [what for what in said if what != "loading"] == ["waiting", "wants"]
    assert told == [(Loaded(image_id="/cache/a.tar.zst", start="/cache/a.tar.zst", seconds=1.0), None)]


def test_while_the_archive_comes_there_is_no_limit_and_nothing_is_said() -> None:
    """That takes as long as storage does, and the supervisor watches it."""
    said: list[str] = []
    told: list[Any] = []
    loop = Loop()
    argv, end = (sys.executable, "-c", f"{WANTS}; print('{ANSWER}')"), lambda *end: told.append(end)
    child = ImageChild(loop, argv, lambda message: said.append(name_of(message)), lambda: said.append("wants"), end, limit_s=2.0)
    assert loop.until(lambda: "wants" in said, END_S)
    before = len(said)
    assert not loop.until(lambda: bool(told), 2.5)
    assert len(said) == before
    child.bring("/cache/a.tar.zst")
    assert loop.until(lambda: bool(told), END_S)
    assert told == [(Loaded(image_id="sha256:1", start="sha256:1", seconds=1.0), None)]


def test_to_kill_it_ends_what_it_started_too(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    told: list[Any] = []
    start = f"import pathlib, signal, subprocess; pathlib.Path({str(file)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid))"
    loop = Loop()
    loop.every(0.02, lambda: None)
    child = ImageChild(
        loop, (sys.executable, "-c", f"{start}; signal.pause()"), lambda _message: None, lambda: None, lambda *end: told.append(end)
    )
    assert loop.until(lambda: file.exists() and bool(file.read_text()) or bool(told), END_S)
    other = processes.state_of(int(file.read_text()))
    assert other is not None
    child.kill()
    assert loop.until(lambda: not processes.is_alive(other.pid, other.start), END_S)
    child.kill()
    assert told == []
