"""Children of the node program that say and hear lines: stagers, probes."""

import json
import sys
from typing import Any

import pytest

from cluster import processes
from workflow.run.link.event_loop import Loop
from workflow.run.link.reports import Listening, Progress, StagedCopy, Waiting
from workflow.run.node.child import Child
from workflow.run.node.node_work import ProbeReport
from workflow.run.node.stagers import PeerGroup, stage_child

pytestmark = pytest.mark.slow
END_S = 20.0
STAGED: dict[str, Any] = {
    **dict.fromkeys(("bytes", "copied_bytes", "storage_bytes", "peer_bytes", "resumed_bytes", "checked_bytes", "seconds"), 0),
    **{"root": "/cache/datasets/d-0123456789ab", "digest": "0", "lost_peers": {}, "hit": True, "lease": None},
}


def says(*lines: Any) -> str:
    return "".join(f"print({line if isinstance(line, str) else json.dumps(line)!r}, flush=True)\n" for line in lines)


def staged(code: str) -> tuple[list[Any], list[Any]]:
    """The one end of a stager that runs `code`, and what it said."""
    loop, told, said = Loop(), [], []  # type: ignore[var-annotated]
    stage_child(loop, "dataset", (sys.executable, "-c", code), said.append, lambda *end: told.append(end))
    assert loop.until(lambda: bool(told), END_S)
    return told, said


def test_a_stager_says_how_far_it_is_and_its_result_counts_when_it_has_ended_well() -> None:
    code = says("'words of a library'", "[1]", {"waiting": True}, {"progress": [3, 9]}, {"result": STAGED})
    assert staged(code) == ([(StagedCopy(**STAGED), None)], [Waiting(what="dataset"), Progress(what="dataset", done=3, total=9)])
    ((result, problem),) = staged(f"{code}\nraise SystemExit(1)")[0]
    assert (result, problem[0]) == (None, "StagingError")
    assert "the staging process ended with 1 and without an answer" in problem[1]


def test_a_stager_s_error_is_named() -> None:
    code = says({"error": {"class": "NotEnoughSpace", "message": "no room"}})
    assert staged(f"{code}\nraise SystemExit(15)")[0] == [(None, ("NotEnoughSpace", "no room"))]


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
def test_a_stager_that_says_a_foreign_line_is_refused_and_ended(line: Any) -> None:
    """Not the node program: it goes on and tells the supervisor."""
    ((result, problem),), said = staged(says(line) + "import signal; signal.pause()")
    assert (result, problem[0], said) == (None, "StagingError", [])
    assert "which is none of its lines" in problem[1]


def test_a_stager_of_a_group_answers_at_once_and_hears_of_the_others() -> None:
    group = PeerGroup(index=0, nodes=2, address="127.0.0.1", token=b"\1\2")
    code = f"import json, sys; token = sys.stdin.readline().strip()\n{says({'result': STAGED})}"
    code += "others = json.loads(sys.stdin.readline()); have = token + ' ' + others['peers']\n"
    code += "print(json.dumps({'listening': {'address': '::1', 'port': 1, 'have': have}}), flush=True)\n"
    loop, told, said = Loop(), [], []  # type: ignore[var-annotated]
    child = stage_child(loop, "image", (sys.executable, "-c", code, "--"), said.append, lambda *end: told.append(end), group)
    assert loop.until(lambda: bool(told), END_S)
    many = "x" * 200_000
    child.send(peers=many)  # more than a pipe takes at once
    assert loop.until(lambda: not child.is_open, END_S)
    assert said == [Listening(what="image", address="::1", port=1, have=f"0102 {many}")]
    assert told == [(StagedCopy(**STAGED), None)]


def test_probes_that_say_a_foreign_line_are_ended_with_all_that_they_started() -> None:
    loop, heard, ended = Loop(), [], []  # type: ignore[var-annotated]
    start = (
        'import signal, subprocess; print(\'{"say": "failed", "problem": "%d"}\' % subprocess.Popen([\'sleep\', \'600\']).pid, flush=True)'
    )
    code = f"{start}\n{says({'say': 'listening', 'address': 'here', 'port': 'x'})}signal.pause()"
    child: Child[ProbeReport] = Child(loop, (sys.executable, "-c", code), ProbeReport, heard.append, lambda *end: ended.append(end))
    assert loop.until(lambda: bool(ended), END_S)
    ((well, how),) = ended
    assert not well
    assert "port" in how
    assert not child.is_open
    started = processes.state_of(int(heard[0].problem))
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
