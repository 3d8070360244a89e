"""The child that brings an image in, as the node program's loop sees it: answered, failed, slow, ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cluster import processes
from workflow.run.link.event_loop import Loop
from workflow.run.link.messages import name_of
from workflow.run.link.said import ImageWanted, Message
from workflow.run.node.image_child import ImageChild

pytestmark = pytest.mark.slow
END_S = 20.0


def load(code: str, **options: Any) -> tuple[list[Any], list[str]]:
    """The end of a child that runs `code`, and what it said; it gets its turn when it asks."""
    told: list[Any] = []
    said: list[str] = []

    def say(message: Message) -> None:
        said.append(name_of(message))
        if isinstance(message, ImageWanted):
            child.read(1e9)

    loop = Loop()
    child = ImageChild(loop, (sys.executable, "-c", code), say, lambda *end: told.append(end), **options)
    assert loop.until(lambda: bool(told), END_S)
    return told, said


def test_its_answer_is_told_once() -> None:
    assert load('print(\'{"image_id": "sha256:1"}\')')[0] == [({"image_id": "sha256:1"}, None)]


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ('print(\'{"error": ["NotEnoughSpace", "no room"]}\'); raise SystemExit(15)', "NotEnoughSpace", "no room"),
        ("raise SystemExit(3)", "ContainerError", "ended with 3 and without an answer"),
        ("print('{')", "ContainerError", "without an answer"),
        ("print('{\"image_id\": 1}'); raise SystemExit(1)", "ContainerError", "ended with 1"),
        ("print('{\"read\": 1}')", "ContainerError", "ended with 0 and without an answer"),
    ],
    ids=["error", "silent", "torn", "answer of a failure", "half way"],
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


def test_it_reads_storage_in_its_turn() -> None:
    told, said = load(f"{WANTS}; print('{{\"read\": 9}}'); print('{{\"image_id\": ' + line.split()[1][:-1] + '}}')")
    assert [what for what in said if what != "loading"] == ["image_wanted", "image_read"]
    assert told == [({"image_id": 1e9}, None)]


def test_reading_as_slowly_as_the_site_asks_has_no_limit_but_that_something_comes() -> None:
    """The child says `progress` until it is told to stop, after the limit of all else has passed several times over."""
    told: list[Any] = []
    waits: list[str] = []
    code = (
        f"{WANTS}; import select\n"
        "while not select.select([0], [], [], 0.01)[0]: print('{\"progress\": [1, 2]}', flush=True)\n"
        "print('{\"image_id\": 1}')"
    )

    def say(message: Message) -> None:
        waits.append(name_of(message))
        if isinstance(message, ImageWanted):
            child.read(None)

    loop = Loop()
    child = ImageChild(loop, (sys.executable, "-c", code), say, lambda *end: told.append(end), limit_s=0.5, stall_s=END_S)
    assert loop.until(lambda: waits.count("loading") > 4 or bool(told), END_S)
    assert told == []
    child.read(None)
    assert loop.until(lambda: bool(told), END_S)
    assert told == [({"image_id": 1}, None)]


def test_storage_that_gives_nothing_is_named_and_waiting_for_a_turn_is_not_that() -> None:
    told, said = load(f"{WANTS}; sys.stdin.readline()", stall_s=0.05)
    assert "image_read" not in said
    assert told == [(None, ("StorageError", "the image's archive on storage gave no byte for 0.05 s; its load was ended"))]
    told = []
    loop = Loop()
    waits: list[str] = []

    def say(message: Message) -> None:
        waits.append(name_of(message))

    child = ImageChild(loop, (sys.executable, "-c", WANTS), say, told.append, limit_s=30.0, stall_s=0.02)
    assert loop.until(lambda: waits.count("loading") > 5 or bool(told), END_S)
    assert told == []
    child.kill()


def test_to_kill_it_ends_what_it_started_too(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    told: list[Any] = []
    start = f"import pathlib, signal, subprocess; pathlib.Path({str(file)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid))"
    loop = Loop()
    loop.every(0.02, lambda: None)
    child = ImageChild(loop, (sys.executable, "-c", f"{start}; signal.pause()"), lambda _message: None, lambda *end: told.append(end))
    assert loop.until(lambda: file.exists() and bool(file.read_text()) or bool(told), END_S)
    other = processes.state_of(int(file.read_text()))
    assert other is not None
    child.kill()
    assert loop.until(lambda: not processes.is_alive(other.pid, other.start), END_S)
    child.kill()
    assert told == []
