"""slipway_profile.py: what is traced and logged in which step, and what is made of that."""

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.containers.specs import library

MODULE: Any = library("slipway_profile")


def of_step(exposed: float) -> dict[str, float]:
    own = {"before_s": 1.0, "forward_s": 2.0, "backward_s": 3.0, "optimizer_s": 0.5}
    return {**own, "exchange_s": exposed + 1.5, "overlap_s": 1.5, "own_exposed_s": exposed, "step_s": 6.75 + exposed}


def test_what_a_rank_waits_longer_than_the_others_is_skew() -> None:
    found = MODULE.mean_parts([[of_step(0.5), of_step(2.5), of_step(9.0)], [of_step(1.5), of_step(0.5)]])
    assert (found["steps"], found["ranks"]) == (2, 2)
    assert (found["exposed_s"], found["skew_s"]) == (0.5, 0.75)
    assert found["other_s"] == 0.25
    assert math.isclose(found["closing_ratio"], 7.75 / 8.0)
    assert MODULE.mean_parts([[of_step(1.0)], []]) == {"steps": 0, "ranks": 2}


class Module:
    def __init__(self, *children: "Module") -> None:
        self._children = children

    def children(self) -> Any:
        return iter(self._children)


def test_layers_are_named_as_in_the_code_of_the_network() -> None:
    class Network:
        def named_modules(self) -> list[tuple[str, Module]]:
            names = ("module._orig_mod.features.0", "module._orig_mod.fc1", "block1/conv")
            return [("", Module(Module())), *((name, Module()) for name in names), ("module.features", Module(Module()))]

    assert list(MODULE.layer_names(Network())) == ["features.0", "fc1", "block1.conv"]


class Clock:
    def __init__(self) -> None:
        self.done: list[str] = []

    def begin(self) -> None:
        self.done.append("begin")

    def end(self, number: int, loss: str) -> str:
        self.done.append(f"end {number}")
        return loss


class MklDnn:
    """What torch.backends.mkldnn has: `verbose` makes oneDNN write to standard output, as any C library does."""

    def __init__(self, level: int) -> None:
        assert level == 1

    def __enter__(self) -> None:
        os.write(1, b"onednn_verbose,v1,a line\nof another library\n")

    def __exit__(self, *_: object) -> None:
        os.write(1, b"onednn_verbose,v1,the last\n")

    @staticmethod
    def is_available() -> bool:
        return True


TORCH = SimpleNamespace(backends=SimpleNamespace(mkldnn=SimpleNamespace(verbose=MklDnn, is_available=MklDnn.is_available)))


def test_only_lines_of_onednn_go_to_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"before\n")
    log = MODULE.OneDnnLog(TORCH)
    os.write(1, b"meanwhile\n")
    log.write(str(tmp_path / "onednn.log"))
    os.write(1, b"after\n")
    assert (tmp_path / "onednn.log").read_text() == "onednn_verbose,v1,a line\nonednn_verbose,v1,the last\n"
    assert capfd.readouterr().out == "before\nof another library\nmeanwhile\nafter\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_steps_are_logged_then_traced_by_rank_0(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    clock = Clock()

    class Trace:
        def __init__(self, *_: Any) -> None:
            clock.done.append("trace")

        def begin(self, number: int) -> None:
            clock.done.append(f"range {number}")

        def write(self, path: str) -> None:
            clock.done.append(path)

    class OneDnnLog:
        def __init__(self, _: Any) -> None:
            clock.done.append("verbose")

        def write(self, path: str) -> None:
            clock.done.append(path)

    monkeypatch.setattr(MODULE, "Trace", Trace)
    monkeypatch.setattr(MODULE, "OneDnnLog", OneDnnLog)
    cell = {"mode": "train", "device": "cpu", "profile": {"of": "x", "logged": 2}}
    profiler = MODULE.Profiler(TORCH, None, cell, "out", rank, (3, 5))
    monkeypatch.setattr(profiler, "start_log", lambda: clock.done.append("log"))
    monkeypatch.setattr(profiler, "write_log", lambda: clock.done.append("gather"))
    monkeypatch.setattr(profiler, "meets_others", lambda: False)
    profiler.follow(clock, 0)
    clock.begin()
    for number in range(5):
        if number == 3:
            clock.begin()
        assert clock.end(number, "loss") == "loss"
    verbose, written = (["verbose"], ["out/onednn.log"]) if rank == 0 else ([], [])
    before = [*verbose, "begin", "end 0", *written, "log", "end 1", "end 2", "gather"]
    traced = ["trace", "range 3", "begin", "end 3", "range 4", "end 4", "out/trace.json.gz"]
    assert clock.done == [*before, *(traced if rank == 0 else ["begin", "end 3", "end 4"])]
