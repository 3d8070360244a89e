"""How slipway_events times steps on a GPU, with a PyTorch that has none: what is made once and used again, and that nobody waits."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.containers.specs import library
from workflow.run.record.events import read_events

STEP_MS = 4.0


class Device:
    """A stream that has done what was handed to it up to `done` milliseconds of its time."""

    def __init__(self) -> None:
        self.handed = self.done = 0.0
        self.made: dict[str, int] = {"events": 0, "places": 0}
        self.waits = 0
        self.cuda = SimpleNamespace(Event=self.event, synchronize=self.synchronize)

    def event(self, *, enable_timing: bool) -> "Event":
        assert enable_timing
        self.made["events"] += 1
        return Event(self)

    def synchronize(self) -> None:
        self.waits += 1
        self.done = self.handed

    def empty(self, shape: tuple[int, ...], *, dtype: str, pin_memory: bool) -> "Loss":
        assert (shape, pin_memory) == ((), True)
        self.made["places"] += 1
        return Loss(self, dtype, cuda=False)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0.0

    def record(self) -> None:
        self.at = self.device.handed

    def query(self) -> bool:
        return self.at <= self.device.done

    def synchronize(self) -> None:
        self.device.synchronize()

    def elapsed_time(self, later: "Event") -> float:
        return later.at - self.at


class Loss:
    def __init__(self, device: Device, dtype: str, value: float = 0.0, shape: tuple[int, ...] = (), *, cuda: bool = True) -> None:
        self.device, self.dtype, self.value, self.shape, self.is_cuda = device, dtype, value, shape, cuda

    def detach(self) -> "Loss":
        return self

    def dim(self) -> int:
        return len(self.shape)

    def reshape(self, shape: tuple[int, ...]) -> "Loss":
        return Loss(self.device, self.dtype, self.value, shape, cuda=self.is_cuda)

    def copy_(self, other: "Loss", *, non_blocking: bool) -> "Loss":
        assert (non_blocking, other.shape) == (True, ())
        self.value = other.value
        return self

    def item(self) -> float:
        assert not self.is_cuda, "it would wait for the GPU"
        return self.value


@pytest.fixture
def device() -> Device:
    return Device()


def clock_of(device: Device) -> Any:
    return library("slipway_events").CudaClock(device)


def test_a_gpu_that_is_steps_behind_is_not_waited_for_and_little_is_made(device: Device) -> None:
    clock = clock_of(device)
    clock.begin()
    for number in range(100):
        device.handed += STEP_MS
        clock.end(number, None, {"samples": 2}, Loss(device, "float32" if number % 2 else "bfloat16", float(number), (1,) * (number % 3)))
        device.done = max(0.0, device.handed - 3.5 * STEP_MS)
    assert device.waits == 1, "at the begin alone"
    assert device.made["events"] <= 8
    assert device.made["places"] <= 8
    clock.drain()
    assert [(number, seconds, value) for _, number, seconds, _, _, value in clock.finished] == [
        (number, STEP_MS / 1000, float(number)) for number in range(100)
    ]


def test_a_loss_of_the_program_s_own_memory_is_read_and_not_kept(device: Device) -> None:
    clock = clock_of(device)
    clock.begin()
    own = Loss(device, "float32", 1.5, cuda=False)
    for number, loss in enumerate((own, None, 2.5)):
        device.handed += STEP_MS
        clock.end(number, None, {}, loss)
    clock.drain()
    assert [value for *_, value in clock.finished] == [1.5, None, 2.5]
    assert clock.free_places == {}
    assert device.made["places"] == 0


@pytest.mark.parametrize("by_call_back", [False, True])
def test_parts_on_a_gpu_are_events_of_the_stream_that_are_used_again(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_call_back: bool
) -> None:
    """Of a call-back the end of a part is the begin of the next one."""
    helper = library("slipway_events")
    cell = {"steps": {"warmup": 0, "measured": 50}, "device": "cuda"}
    run = helper.Run(cell, str(tmp_path), {})
    monkeypatch.setattr(helper, "synchronize", lambda: None)
    run.clock, run.plan = helper.CudaClock(device), (50, 0, 50)
    run.clock.begin()
    parts = library("slipway_parts").Parts(run, None)
    for number in range(50):
        if by_call_back:
            parts.begin()
        for name, lasts in (("forward", 1.0), ("backward", 2.5)):
            with contextlib.nullcontext() if by_call_back else run.part(name):
                device.handed += lasts
            if by_call_back:
                parts.end(name)
        device.handed += 0.5
        run.clock.end(number, None, {}, None)
        run.step += 1
        device.done = max(0.0, device.handed - 3.5 * STEP_MS)
        run.write_steps()
    device.done = device.handed
    run.clock.pick_up()
    run.write_steps()
    run.events.file.close()
    steps = read_events(tmp_path, 1)[0].steps.values()
    assert {(step.seconds, step.forward_s, step.backward_s) for step in steps} == {(0.004, 0.001, 0.0025)}
    assert len(steps) == 50
    assert device.waits == 1, "at the begin alone"
    assert device.made["events"] < 40, "250 are used"
