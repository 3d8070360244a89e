"""Faults below each launcher, on two nodes of this machine: the rank that failed first is named, within what the limits say, and nothing is
left. Those below `ranks`: test_runs.py and test_kills.py; of the parts of MPI: test_mpirun.py; in containers: tests/containers."""

import json
import re
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.workflow.run.test_mpirun import run_of as run_with_mpi
from tests.workflow.run.test_runs import checked
from tests.workflow.run.world import FAKE, World
from workflow.run.node.limits import RANK_LOOK_EVERY_S
from workflow.run.supervisor.step_limits import NODE_SILENCE_S, NODES_STOP_S, OTHER_FAILURES_S, RANK_LOOKS_S

pytestmark = pytest.mark.slow
SILENCE_S = 2.0
BUSY_S = NODE_SILENCE_S
"""How much longer a machine may take that others keep busy: were it more, its nodes would count as lost."""


class Fault(NamedTuple):
    """What the rank does, in the words of both programs; how the run ends, by what code, in which words, and within which limits."""

    fake: str
    mpi: str
    status: str
    code: int
    words: str
    named_s: float = OTHER_FAILURES_S


FAULTS = {
    "exits": Fault("exit 3", "exit", "error", 0, "ended with exit code 3"),
    "killed": Fault("SIGKILL", "kill", "killed", 23, "was killed from outside by SIGKILL, without a sign of missing memory"),
    "frozen": Fault("SIGSTOP", "stop", "hang", 0, "its process is stopped (state T)", SILENCE_S + RANK_LOOK_EVERY_S + RANK_LOOKS_S),
    "launcher killed": Fault("orphan", "", "killed", 23, "was killed from outside by SIGKILL, without a sign of missing memory"),
}
WITH_MPI = pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not here (openmpi-bin)")


def run_below(world: World, launcher: str, fault: Fault) -> tuple[str, int]:
    """A run on two nodes of which one rank does that in its third step or later, and that rank."""
    if launcher == "mpirun":
        return run_with_mpi(world, fault.mpi, "0.12"), 3  # so slow that each step is written at once
    folder = world.path / "launched" / "fake"
    shutil.copytree(FAKE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = (folder / "framework.yaml").read_text().replace("launcher: ranks", f"launcher: {launcher}")
    rank, each = (0, 1) if launcher == "single" else (3, 2)
    if launcher == "single":
        waiter = "[{name: waiter, where: each, command: [sleep, '1000'], env: {}, ends: stopped}]"
        settings = settings.replace("sidecars: []", f"sidecars: {waiter}")
    (folder / "framework.yaml").write_text(settings)
    run_id = world.cell(2, each, measured=100_000, step_s=0.005, sync=launcher != "single", do={str(rank): [3, fault.fake]})
    world.cells[-1]["framework"] = str(folder)
    world.write()
    return run_id, rank


@pytest.mark.parametrize(
    ("launcher", "what"),
    [
        *[("single", what) for what in ("exits", "killed", "frozen")],
        *[("torchrun", what) for what in ("exits", "frozen", "launcher killed")],
        pytest.param("torchrun", "killed", marks=pytest.mark.long),
        *[pytest.param("mpirun", what, marks=WITH_MPI) for what in ("exits", "killed")],
        pytest.param("mpirun", "frozen", marks=[WITH_MPI, pytest.mark.long]),
    ],
)
def test_a_fault_is_named_in_time_and_leaves_nothing(
    world: World, launcher: str, what: str, record_property: Callable[[str, object], None]
) -> None:
    fault = FAULTS[what]
    if what == "frozen":  # where the machine is loaded, ranks are silent for longer than that before they fail
        world.shorter["rank_silence_s"] = SILENCE_S
    run_id, rank = run_below(world, launcher, fault)
    world.ends(run_id, fault.code)
    assert world.left() == []
    record = checked(world, run_id, 1)
    host = "local-0" if launcher == "single" else "local-1"
    who = "torchrun" if what == "launcher killed" else f"rank {rank}"
    assert record["status"] == fault.status
    assert re.match(rf"{who} on {host} .*{re.escape(fault.words)}", record["status_reason"]), record["status_reason"]
    failed = record["failed_rank"]
    assert (failed["rank"], failed["host"]) == (None if who == "torchrun" else rank, host)
    assert failed["signal"] == ("SIGKILL" if "killed" in what else None)
    assert failed["exit_code"] == (3 if what == "exits" else None)
    named_s, ended_s = times(world.run_dir(run_id) / "attempts" / "1" / f"events-{rank}.jsonl", record, what == "launcher killed")
    record_property("times", f"{launcher}, {what}: named after {named_s:.2f} s, ended after {ended_s:.2f} s more")
    assert named_s < fault.named_s + BUSY_S
    assert ended_s < NODES_STOP_S


def times(events: Path, record: dict[str, Any], goes_on: bool) -> tuple[float, float]:
    """By the record's own times: seconds from the fault until it had a name, and from then on until all was ended and collected. The fault
    came after the last line of its rank, or where that `goes_on` after its third step."""
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    before = [line["time"] for line in lines if not goes_on or line.get("step", 0) < 3]
    steps = record["steps_s"]
    named = datetime.fromisoformat(record["time"]["end"]).timestamp() - sum(steps[step] for step in ("result", "push", "release"))
    return named - before[-1], steps["result"]
