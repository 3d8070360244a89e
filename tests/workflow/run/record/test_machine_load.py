"""What watchers wrote, cut to the window; and what of it makes a number doubtful."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from tests.workflow.run.cells import document
from workflow.run.record.events import RankEvents, Step
from workflow.run.record.machine_load import Watched, busy, file_name, load_of, loads, others_seen, parse_watched, together
from workflow.run.record.model import Busiest, Load, Node
from workflow.run.storage.attempt import read_measured

CORES = 4


def line(t: float, *, others: float = 0.0, own: float = 2.0, **more: Any) -> dict[str, Any]:
    """At `t` seconds: ours used `own` cores since the begin, others so many; a tenth of a core served interrupts."""
    return {
        "t": t,
        "idle": 100 + t * (CORES - own - others - 0.1),
        "steal": 7.0,
        "interrupts": 0.1 * t,
        "own": own * t,
        "faults": 3,
        **more,
    }


def content(*lines: Any, head: Any = None) -> list[bytes]:
    head = {"schema": "slipway.load/1", "cores": CORES} if head is None else head
    return [json.dumps(value).encode() + b"\n" for value in (head, *lines)]


def watched(*lines: Any) -> Watched:
    found = parse_watched(content(*lines))
    assert found is not None
    return found


def test_what_was_before_the_window_is_not_in_its_load() -> None:
    quiet = [line(t) for t in (0, 1, 2, 3)]
    loud = [
        {**line(3 + t, others=0), "idle": quiet[-1]["idle"] + t * (CORES - 2 - 1.5 - 0.1), "busiest": [["python3 of alice", 1.4]]}
        for t in (1, 2)
    ]
    found = load_of(watched(*quiet, *loud), (3.2, 4.8))
    msgspec.convert(msgspec.to_builtins(found), Load)
    assert found.during.seconds == 2, "the window is widened to the lines around it"
    assert found.during.others_cores == pytest.approx(1.5, abs=1e-3)
    assert found.during.own_cores == pytest.approx(2.0)
    assert found.during.interrupt_cores == pytest.approx(0.1)
    assert [one.name for one in found.during.busiest] == ["python3 of alice"]


def test_each_counter_has_its_own_lines() -> None:
    """Some are asked seldom: what they tell is a rate over their own time."""
    lines = [line(float(t)) for t in range(11)]
    for t, seconds in ((0, 1.0), (5, 1.5), (10, 3.5)):
        lines[t] |= {
            "kernel": seconds,
            "memory_some": t / 10,
            "available": 10**9 - t,
            "swapped_in": 4096 * t,
        }
    during = load_of(watched(*lines), (5.5, 9.5)).during
    assert during.kernel_cores == pytest.approx(0.4)
    assert during.memory_wait_ratio == pytest.approx(0.1)
    assert (during.available_bytes_min, during.swapped_in_bytes) == (10**9 - 10, 5 * 4096)
    assert during.throttle_events is during.io_wait_ratio is during.gpus is None


@pytest.mark.parametrize("window", [None, (-5.0, 2.0), (500.0, 600.0), (2.0, 1.0)])
def test_a_window_of_another_clock_is_none(window: tuple[float, float] | None) -> None:
    found = load_of(watched(*[line(float(t)) for t in range(5)]), window)
    assert found.during is None


def test_the_end_of_a_container_takes_no_time_of_ours_away() -> None:
    """Its processes are waited for by others: what they used is gone from ours, and must not be taken for that of others."""
    lines = [line(float(t)) for t in range(5)]
    gone = {**line(5.0), "own": 1.0}
    during = load_of(watched(*lines, gone), (1.5, 4.5)).during
    assert (during.seconds, during.others_cores) == (3, 0)


def test_lines_that_are_none_are_passed_over() -> None:
    whole = [line(float(t)) for t in range(4)]
    odd = [
        {"t": 1.5, "own": -1},
        {"t": 1.6, "idle": 1e300},
        [1],
        None,
        {"own": 1},
        {"t": "2"},
        {"t": 0.5, "own": 1.0},
        {"t": 1.7, "busiest": [["x"]]},
    ]
    found = parse_watched(content(*whole[:2], *odd, *whole[2:]) + [b'{"t": 9'])
    assert [sample.t for sample in found.lines] == [0, 1, 2, 3]
    assert parse_watched([]) is None
    assert parse_watched(content(line(1.0), head={"schema": "another", "cores": 2})) is None
    assert parse_watched(content(line(1.0), head={"schema": "slipway.load/1", "cores": 0})) is None


def test_what_no_line_has_is_not_kept_and_a_name_is_one_line() -> None:
    lines = [{**line(float(t), busiest=[["a\nWARNING b\x1b", 0.2]]), "strange": "x" * 1000} for t in range(4)]
    found = watched(*lines)
    assert len(found.lines) == 4
    during = load_of(found, (1.0, 2.0)).during
    assert [one.name for one in during.busiest] == ["a WARNING b\ufffd"]


def test_a_line_with_one_wrong_value_is_passed_over() -> None:
    kept = {"kernel": 0.1, "busiest": [["a of b", 0.2]], "available": 5, "strange": None}
    odd = [None, True, -1, 1e16, math.nan, math.inf, 10**20, "1", [], [1], [[1, 1]], [["a", -1]], [1.0, "2"], {}, 0, 7.5]
    right = {"busiest": [[]], "strange": [value for value in odd if value not in (math.nan, math.inf)]}
    whole = line(1.0, **kept)
    assert len(watched(whole).lines) == 1
    for key in whole:
        for value in odd:
            found = watched({**whole, key: value}).lines
            assert len(found) == (value in right.get(key, [0, 7.5])), (key, value)
    for value in ([whole], {}, None, 3, {key: value for key, value in whole.items() if key != "t"}):
        assert not watched(value).lines


@pytest.mark.parametrize(("status", "read"), [("ok", True), ("preempted", False), ("timeout", False)])
def test_only_of_an_attempt_that_ended_well_it_is_read_what_was_seen(tmp_path: Path, status: str, read: bool) -> None:
    """Who is preempted has some seconds for the push; and has no rate that others can have moved."""
    (tmp_path / file_name(0)).write_bytes(b"".join(content(*[line(float(t)) for t in range(3)])))
    assert bool(read_measured(str(tmp_path), document(), 7, None, "cpu", status).loads) is read


def test_nodes_have_the_windows_of_their_own_ranks(tmp_path: Path) -> None:
    def rank(begin: float) -> RankEvents:
        return RankEvents(
            steps={
                step: Step(step=step, seconds=1.0, measured=True, samples=1, monotonic_ns=int((begin + step + 1) * 1e9))
                for step in range(3)
            }
        )

    cell = dataclasses.replace(document(), nodes=2, gpus_per_node=1, mode="train")
    (tmp_path / file_name(1)).write_bytes(b"".join(content(*[line(float(t)) for t in range(100, 120)])))
    found = loads(tmp_path, {0: rank(5000.0), 1: rank(110.0)}, cell)
    assert set(found) == {1}, "the other node's file is not there"
    assert found[1].during.seconds == 3
    assert loads(tmp_path, {1: rank(110.0)}, cell)[1].during is None, "a window is one of all ranks"


def node(**during: Any) -> Any:
    quiet = load_of(watched(*[line(float(t)) for t in range(40)]), (10.0, 30.0))
    assert quiet.during is not None
    return Node(name="n1", hostname="h", gpus=(), load=replace(quiet, during=replace(quiet.during, **during)))


def without_load(name: str, **load: None) -> Node:
    return Node(name=name, hostname="h", gpus=(), **load)


@pytest.mark.parametrize(
    ("during", "words"),
    [
        ({}, None),
        ({"others_cores": 0.19}, None),
        ({"others_cores": 1.25}, "others used 1.2 of 4 cores while it measured"),
        ({"others_cores": 1.25, "busiest": (Busiest(name="vim of bob", cores=1.0),)}, "(vim of bob)"),
        ({"others_cores": 0.25, "seconds": 0.5}, None),  # a hundredth of a second more or less in some processes
        ({"steal_ratio": 0.04}, None),
        ({"steal_ratio": 0.12}, "the host of this virtual machine took 12 % of its cores' time"),
        ({"memory_wait_ratio": 0.2}, "programs waited for memory in 20 % of the time"),
        ({"swapped_in_bytes": 1 << 20}, "1.0 MiB came back from the swap space"),
        ({"throttle_events": 2}, "heat slowed its cores down 2 times"),
    ],
)
def test_what_can_have_moved_the_number_is_said(during: dict[str, Any], words: str | None) -> None:
    found = busy([node(**during), without_load("n2", load=None), without_load("n3")])
    assert len(found) == (words is not None)
    assert all(said.startswith("n1: ") and str(words) in said for said in found)


def test_others_on_one_node_are_others() -> None:
    assert not others_seen([node(), without_load("n3")])
    assert others_seen([node(), node(others_cores=0.5)])


def test_two_watchers_that_write_in_turn_lose_no_line() -> None:
    """That of GPUs waits for its answer while the other one writes: its lines come late, and are nevertheless there."""
    gpu = dict.fromkeys(("mhz", "max_mhz", "reasons", "celsius", "watts", "busy_ratio", "ecc_errors", "others"), 1)
    lines: list[dict[str, Any]] = []
    for t in range(0, 40, 2):
        lines += [line(t + 0.5), line(t + 1.0), {"t": t + 0.25, "gpus": [{"uuid": "GPU-1", **gpu}]}, line(t + 0.75)]
    found = watched(*lines)
    assert [sample.t for sample in found.lines if sample.gpus is not UNSET] == [t + 0.25 for t in range(0, 40, 2)]
    assert [sample.t for sample in found.lines if sample.own is not UNSET] == [t + add for t in range(0, 40, 2) for add in (0.5, 1.0)]
    assert [sample.t for sample in found.lines] == sorted(sample.t for sample in found.lines)
    assert load_of(found, (10.0, 20.0)).during.gpus[0].looks == 4


def test_a_gpu_beside_the_window_tells_nothing_of_what_it_did_in_it() -> None:
    """As it was on an H200 (2026-11): idle before the window and after it, and at work in between; a look tells of its last second."""

    def look(t: float, work: float, **more: Any) -> dict[str, Any]:
        gpu = {"mhz": 345 + 1635 * work, "max_mhz": 1980, "reasons": 0, "celsius": 40 + 20 * work, "watts": 80 + 600 * work}
        return {"t": t, "gpus": [{"uuid": "GPU-1", **gpu, "busy_ratio": work, "ecc_errors": 0, "others": 0, **more}]}

    quiet = [line(t / 2) for t in range(30)]
    before, after = [look(1.1, 0.0), look(3.3, 0.1)], look(9.3, 0.0, reasons=0x40, others=1)
    found = load_of(watched(*quiet, *before, look(5.3, 1.0), look(7.3, 0.9), after), (3.0, 9.0))
    msgspec.convert(msgspec.to_builtins(found), Load)
    (gpu,) = found.during.gpus
    assert (gpu.looks, gpu.busy_ratio_mean, gpu.watts_mean) == (2, pytest.approx(0.95), pytest.approx(650))
    assert (gpu.celsius_max, gpu.throttled, gpu.others_max) == (60, ("heat (hardware)",), 1), "these are never missed"
    found = load_of(watched(*quiet, *before, after), (4.0, 9.0))
    msgspec.convert(msgspec.to_builtins(found), Load)
    (gpu,) = found.during.gpus
    assert (gpu.looks, gpu.busy_ratio_mean, gpu.mhz_mean) == (0, None, None), "nobody looked in it"


def test_without_sight_of_the_kernel_s_threads_others_are_not_judged() -> None:
    """What is busy and not ours may be the kernel's."""
    lines = [line(float(t), others=1.5) for t in range(5)]
    seen, unseen = (
        parse_watched(content(*lines, head={"schema": "slipway.load/1", "cores": CORES, "kernel_seen": flag})) for flag in (True, False)
    )
    assert seen is not None
    assert unseen is not None
    told, untold = load_of(seen, (1.0, 3.0)), load_of(unseen, (1.0, 3.0))
    assert told.during.others_cores == pytest.approx(1.5)
    assert others_seen([replace(node(), load=told)])
    msgspec.convert(msgspec.to_builtins(untold), Load)
    assert (untold.kernel_seen, untold.during.others_cores) == (False, None)
    assert not others_seen([replace(node(), load=untold)])
    assert not busy([replace(node(), load=untold)])


def test_alike_words_of_nodes_are_one_sentence() -> None:
    words = "others used 0.5 of 2 cores while it measured"
    assert together([f"local-0: {words}", f"local-1: {words}", "local-1: heat"]) == [f"local-0, local-1: {words}", "local-1: heat"]
    assert together(["one sentence"]) == ["one sentence"]
    assert together([]) == []
