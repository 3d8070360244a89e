"""Children of the node program that say and hear lines: stagers, loads of images, probes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster import processes
from workflow.run.link.event_loop import Loop
from workflow.run.link.reports import StagedCopy
from workflow.run.node.child import Address, Child, ImageLoad, Loaded, Stager, Worker, WorkLine
from workflow.run.node.node_work import ProbeReport

pytestmark = pytest.mark.slow
END_S = 20.0
STAGED: dict[str, Any] = {
    **dict.fromkeys(("bytes", "copied_bytes", "storage_bytes", "peer_bytes", "resumed_bytes", "checked_bytes", "seconds"), 0),
    **{"root": "/cache/datasets/d-0123456789ab", "digest": "0", "lost_peers": {}, "hit": True, "lease": None},
}


def says(*lines: Any) -> str:
    return "".join(f"print({line if isinstance(line, str) else json.dumps(line)!r}, flush=True)\n" for line in lines)


def worked(worker: type[Worker[Any]], code: str) -> tuple[list[Any], list[WorkLine[Any]]]:
    """The one end of a child that runs `code`, and its lines; it gets the archive when it asks."""
    loop, told, said = Loop(), list[Any](), list[WorkLine[Any]]()

    def on_line(line: WorkLine[Any]) -> None:
        said.append(line)
        if line.wants is not None:
            child.send(archive="/cache/a.tar.zst")

    child = worker(loop, (sys.executable, "-c", code), on_line, lambda *end: told.append(end))
    assert loop.until(lambda: bool(told), END_S)
    return told, said


def test_a_worker_says_how_far_it_is_and_its_result_counts_when_it_has_ended_well() -> None:
    code = says("'words of a library'", "[1]", {"waiting": True}, {"progress": [3, 9]}, {"result": STAGED})
    result = StagedCopy(**STAGED)
    assert worked(Stager, code) == ([(result, None)], [WorkLine(waiting=True), WorkLine(progress=(3, 9)), WorkLine(result=result)])


@pytest.mark.parametrize(
    ("worker", "code", "name", "words"),
    [
        (
            Stager,
            says({"result": STAGED}) + "raise SystemExit(1)",
            "StagingError",
            "the staging process ended with 1 and without an answer",
        ),
        (Stager, says({"error": ["NotEnoughSpace", "no room"]}) + "raise SystemExit(15)", "NotEnoughSpace", "no room"),
        (ImageLoad, "raise SystemExit(3)", "ContainerError", "the load of the image ended with 3 and without an answer"),
        (ImageLoad, "print('{')", "ContainerError", "ended with 0 and without an answer"),
        (ImageLoad, says({"waiting": True}), "ContainerError", "ended with 0 and without an answer"),
    ],
    ids=["result of a failure", "error", "silent", "torn", "half way"],
)
def test_a_worker_without_a_result_has_an_error(worker: type[Worker[Any]], code: str, name: str, words: str) -> None:
    ((result, problem),) = worked(worker, code)[0]
    assert (result, problem[0]) == (None, name)
    assert words in problem[1]


@pytest.mark.parametrize(
    "line",
    [
        {"result": {**STAGED, "root": 3}},
        {"result": {}},
        {"progress": 3},
        {"error": "no"},
        {"listening": 1},
        {"new": 1},
    ],
    ids=["odd result", "empty result", "odd progress", "odd error", "odd address", "unknown"],
)
def test_a_worker_that_says_a_foreign_line_is_refused_and_ended(line: Any) -> None:
    """Not the node program: it goes on and tells the supervisor."""
    ((result, problem),), said = worked(Stager, says(line) + "import signal; signal.pause()")
    assert (result, problem[0], said) == (None, "StagingError", [])
    assert "which is none of its lines" in problem[1]


def test_a_load_gets_the_archive_when_it_asks() -> None:
    answer = "print(json.dumps({'result': {'image_id': 'sha256:1', 'start': json.loads(sys.stdin.readline())['archive'], 'seconds': 1}}))"
    told, _ = worked(ImageLoad, f"import json, sys\n{says({'wants': 9})}{answer}")
    assert told == [(Loaded(image_id="sha256:1", start="/cache/a.tar.zst", seconds=1.0), None)]


def test_a_stager_of_a_group_answers_at_once_and_hears_of_the_others() -> None:
    code = f"import json, sys; token = sys.stdin.readline().strip()\n{says({'result': STAGED})}"
    code += "others = json.loads(sys.stdin.readline()); have = token + ' ' + others['peers']\n"
    code += "print(json.dumps({'listening': {'address': '::1', 'port': 1, 'have': have}}), flush=True)\n"
    loop, told, said = Loop(), list[Any](), list[WorkLine[Any]]()
    child = Stager(loop, (sys.executable, "-c", code, "--"), said.append, lambda *end: told.append(end), at_once=True)
    child.feed(b"0102")
    assert loop.until(lambda: bool(told), END_S)
    many = "x" * 200_000
    child.send(peers=many)  # more than a pipe takes at once
    assert loop.until(lambda: not child.is_open, END_S)
    assert said[1:] == [WorkLine(listening=Address(address="::1", port=1, have=f"0102 {many}"))]
    assert told == [(StagedCopy(**STAGED), None)]


def test_to_kill_a_worker_ends_what_it_started_too(tmp_path: Path) -> None:
    file, told, loop = tmp_path / "pid", list[Any](), Loop()
    start = f"import pathlib, signal, subprocess; pathlib.Path({str(file)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid))"
    loop.every(0.02, lambda: None)
    child = ImageLoad(loop, (sys.executable, "-c", f"{start}; signal.pause()"), lambda _line: None, lambda *end: told.append(end))
    assert loop.until(lambda: file.exists() and bool(file.read_text()) or bool(told), END_S)
    other = processes.state_of(int(file.read_text()))
    assert other is not None
    for _ in range(2):
        child.kill()
        assert loop.until(lambda: not processes.is_alive(other.pid, other.start), END_S)
    assert told == []


def test_probes_that_say_a_foreign_line_are_ended_with_all_that_they_started() -> None:
    loop, heard, ended = Loop(), [], []  # type: ignore[var-annotated]
    line = 'json.dumps({"say": "probes_listen", "address": "", "port": subprocess.Popen(["sleep", "600"]).pid})'
    start = f"import json, signal, subprocess; print({line}, flush=True)"
    code = f"{start}\n{says({'say': 'probes_listen', 'address': 'here', 'port': 'x'})}signal.pause()"
    child: Child[ProbeReport] = Child(loop, (sys.executable, "-c", code), ProbeReport, heard.append, lambda *end: ended.append(end))
    assert loop.until(lambda: bool(ended), END_S)
    ((well, how),) = ended
    assert not well
    assert "port" in how
    assert not child.is_open
    started = processes.state_of(heard[0].port)
    loop.every(0.02, lambda: None)
    assert started is None or loop.until(lambda: not processes.is_alive(started.pid, started.start), END_S)


def test_to_hang_up_ends_a_child_that_hears_its_input_end() -> None:
    loop, ended = Loop(), []  # type: ignore[var-annotated]
    child: Child[ProbeReport] = Child(
        loop, (sys.executable, "-c", "import sys; sys.stdin.read()"), ProbeReport, lambda _line: None, lambda *end: ended.append(end)
    )
    child.hang_up()
    child.send(do="listen")
    assert loop.until(lambda: bool(ended), END_S)
    assert ended[0][0]
