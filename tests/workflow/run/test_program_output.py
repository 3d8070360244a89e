"""Programs of a study that write no events, from the supervisor to the record: their steps are read from what they print, or not at all."""

from typing import Any

import pytest

from tests.workflow.run.test_programs import program
from tests.workflow.run.test_runs import checked, ended
from tests.workflow.run.world import World
from workflow.run.record.rate import NOT_COMPARED

pytestmark = pytest.mark.slow

EACH = """
import os, sys, time
rank = int(os.environ["RANK"])
told = []
def tell(line):
    print(line)
    told.append(line)
    for _ in range(5000):
        with open("events-%d.jsonl" % rank) as file:
            if file.read().count('"event": "step"') == len(told):
                break
        time.sleep(0.002)
for step in range(1, 11):
    time.sleep(0.02)
    {say}
"""
SAY = "tell(f'step {step} of 10, loss {1 / step}')"
"""The next line comes when this one was read, however busy the machine is: what comes together is a mean."""
LINE = r"^step (?P<step>\d+) of \d+, loss (?P<loss>\S+)"


def log(**settings: Any) -> dict[str, Any]:
    return {"log": {"step": LINE, "every": 1, "ranks": "first", **settings}}


def odd(record: dict[str, Any]) -> list[str]:
    """Its warnings, but for those about the machine that the tests run on, and of ranks that cannot tell a checksum."""
    warnings = [line for line in record["warnings"] if line not in (*record["busy"], NOT_COMPARED)]
    return [line for line in warnings if not line.startswith("network: ")]


@pytest.mark.parametrize(
    ("launcher", "nodes", "each", "ranks"), [("torchrun", 1, 2, "first"), ("ranks", 2, 1, "all"), ("ranks", 2, 1, "first")]
)
def test_steps_are_read_from_what_it_prints(world: World, launcher: str, nodes: int, each: int, ranks: str) -> None:
    say = SAY if ranks == "all" else f"rank or {SAY}"
    run_id = program(world, EACH.format(say=say), nodes=nodes, each=each, launcher=launcher, events=log(ranks=ranks))
    record = ended(world, run_id)
    assert (record["status"], record["status_reason"], record["steps_source"]) == ("ok", None, "log")
    found = record["performance"]
    assert (found["num_measured_steps"], found["steps_together"], found["samples"]) == (6, 1, 6 * 2 * nodes * each)
    assert found["window_s"] > 6 * 0.02
    assert found["samples_per_s_per_gpu"] == pytest.approx(found["samples_per_s"] / nodes / each)
    assert (found["first_step_s"], found["input_wait_s_mean"], record["training"]["parameters"]) == (None, None, None)
    assert record["training"]["losses"][1] == [1, 0.5]
    assert odd(record) == []
    text = next((world.run_dir(run_id) / "attempts" / "1" / "logs").glob("rank-0*.log")).read_text()
    assert "step 10 of 10, loss 0.1" in text
    assert checked(world, run_id)["status"] == "ok"


@pytest.mark.parametrize(
    ("say", "each", "events", "words"),
    [
        (
            f"rank or {SAY}",
            2,
            log(ranks="all"),
            "rank 1 ended well, and no line of its output (`slipway logs RUN` shows it) told of",
        ),
        ("step < 5 or os.kill(os.getpid(), 11)", 1, "none", "died of SIGSEGV"),
    ],
    ids=["one silent", "signal"],
)
def test_what_it_does_not_tell_is_a_row_with_its_reason(world: World, say: str, each: int, events: Any, words: str) -> None:
    record = ended(world, program(world, EACH.format(say=say), each=each, events=events))
    assert (record["status"], record["performance"]) == ("error", None)
    assert words in record["status_reason"]


@pytest.mark.long
def test_a_program_that_is_frozen_hangs_though_its_adapter_lives(world: World) -> None:
    world.limits["init_s"] = 15.0
    record = ended(world, program(world, EACH.format(say=f"{SAY}; step < 5 or os.kill(os.getpid(), 19)"), events=log()))
    assert record["status"] == "hang"
    assert "in phase output, limit 15 s; its process is stopped (state T)" in record["status_reason"]


def test_a_program_that_tells_nothing_has_wall_times_only(world: World) -> None:
    run_id = program(world, EACH.format(say="print(step)"), each=2, events="none")
    record = ended(world, run_id)
    assert (record["status"], record["steps_source"], record["performance"]) == ("ok", "none", None)
    assert record["training"]["train_s"] > 0.2
    assert odd(record) == []


def test_a_daemon_with_its_output_and_a_flood_end_with_the_run(world: World) -> None:
    flood = "os.write(1, b'x' * (1 << 20))"
    daemon = "step < 10 or os.fork() or os.setsid() or time.sleep(600)"
    run_id = program(world, EACH.format(say=f"{SAY}; {flood}; print(); {daemon}"), events=log())
    record = ended(world, run_id)
    assert (record["status"], record["performance"]["num_measured_steps"]) == ("ok", 6)
    assert world.left() == []
