"""What nvidia-smi tells of GPUs at work, by answers as its documentation has them; and what is made of it."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.gpus.energy import EnergyCounters
from cluster.gpus.listing import App, parse_fields
from cluster.load.readers import LOOK_FIELDS, MAX_FAILURES, Gpus, Processors, look_of, with_others
from tests.cluster.smi import answer, install
from workflow.run.record.machine_load import busy, load_of, parse_watched
from workflow.run.record.model import Node

ONE, TWO, THREE = (f"GPU-1c3b7a5e-9d21-4f60-8e07-5a1f0c27d9e{number}" for number in (1, 2, 3))


def looks(text: str) -> list[dict[str, Any]]:
    return [look_of(words) for words in parse_fields(text, LOOK_FIELDS)]


def test_an_answer_is_read_and_what_is_not_known_is_null() -> None:
    one, two, three = looks(answer("load"))
    assert one == {
        **{"uuid": ONE, "mhz": 1755, "max_mhz": 1980, "reasons": 0, "celsius": 61, "watts": 655.03, "busy_ratio": 0.99, "ecc_errors": 0}
    }
    assert two["reasons"] == 0x48
    assert (three["watts"], three["ecc_errors"]) == (None, None)
    (old,) = looks(answer("load-old-card"))
    assert (old["mhz"], old["ecc_errors"]) == (1328, None), "a card that is lost has no line"


def test_only_processes_of_others_on_gpus_of_ours_count() -> None:
    apps = [App(ONE, 10, None, "ours"), App(ONE, 11, None, "another's"), App(THREE, 12, None, "another's")]
    found = with_others(looks(answer("load")), {ONE, TWO}, apps, {10})
    assert [(look["uuid"], look["others"]) for look in found] == [(ONE, 1), (TWO, 0)]
    assert with_others(looks(answer("load")), {ONE}, None, {10})[0]["others"] is None


@pytest.mark.processes
@pytest.mark.parametrize(("names", "reasons"), [(["load", "compute-apps"], 0), (["load-old-name", "load-new-name", "compute-apps"], 4)])
def test_a_driver_is_asked_by_the_name_that_it_knows(path: Path, names: list[str], reasons: int) -> None:
    install(path, names)
    reader = Gpus([ONE], Processors([0], [os.getpid()], ""), EnergyCounters(object()))
    asked = time.monotonic()
    found = reader(asked)
    (look,) = found["gpus"]
    assert look["reasons"] == reasons
    assert asked < found["t"] <= time.monotonic(), "the moment is that of the answer"
    assert reader(time.monotonic()) == {}, "not again so soon"


@pytest.mark.processes
def test_without_nvidia_smi_there_is_nothing_and_nobody_asks_for_ever(path: Path) -> None:
    reader = Gpus([ONE], Processors([0], [os.getpid()], ""), EnergyCounters(object()))
    assert [reader(float(now)) for now in range(MAX_FAILURES)] == [{}] * MAX_FAILURES
    install(path, ["load", "compute-apps"])
    assert reader(100.0) == {}


def test_looks_become_a_load_and_what_held_the_clock_down_is_said() -> None:
    def look(t: float, **changes: Any) -> dict[str, Any]:
        gpus = [{**told, "others": 0, **changes} for told in looks(answer("load"))[:2]]
        return {"t": t, "idle": t, "steal": 0, "interrupts": 0, "own": t, "faults": 0, "gpus": gpus}

    lines = [{"schema": "slipway.load/1", "cores": 2}, look(0.0), look(10.0, ecc_errors=3), look(20.0, ecc_errors=5, others=2)]
    watched = parse_watched([json.dumps(line).encode() + b"\n" for line in lines])
    assert watched is not None
    load = load_of(watched, (1.0, 19.0))
    assert load is not None
    assert load.during is not None
    assert load.during.gpus is not None
    one, two = load.during.gpus
    assert (one.looks, one.mhz_mean, list(one.throttled or ()), one.ecc_errors) == (1, 1755, [], 5)
    assert list(two.throttled or ()) == ["hardware slowdown", "heat (hardware)"]
    said = busy([Node(name="n1", hostname="h", gpus=(), load=load)])
    assert f"n1: {TWO}: its clock was held down by hardware slowdown, heat (hardware) while it measured" in said
    assert f"n1: {ONE}: 2 processes of others used it while it measured" in said


def test_damaged_answers_are_looks_or_nothing() -> None:
    chance = random.Random(5)
    for _ in range(300):
        text = answer(chance.choice(["load", "load-old-card", "load-old-name", "compute-apps", "p100x8-query"]))
        place = chance.randrange(len(text))
        damaged = text[:place] + chance.choice(["", ",", "\0", "9" * 30, "0x", "\n", "[", "\u0665", "-", "nan"]) + text[place + 1 :]
        for look in looks(damaged):
            assert all(value is None or value >= 0 for key, value in look.items() if key != "uuid")
