"""slipway_parts.py: which parts of a step are told, of one rank, of several, and where nobody knows what is waited for."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.containers.specs import library

MODULE: Any = library("slipway_parts")


class Hooked:
    """A module, or a parameter, that keeps its hooks."""

    def __init__(self, requires_grad: bool = True) -> None:
        self.requires_grad = requires_grad
        self.hooks: list[Callable[..., None]] = []
        self.register_forward_pre_hook = self.register_post_accumulate_grad_hook = self.hooks.append

    def call(self) -> None:
        for hook in self.hooks:
            assert hook(self) is None


class DistributedDataParallel(Hooked):
    def __init__(self, old: bool = False) -> None:
        super().__init__()
        self.first = Hooked()
        self.module = Hooked()
        parameters = [Hooked(requires_grad=False), self.first]
        for one in parameters if old else ():
            del one.register_post_accumulate_grad_hook
        self.parameters = self.module.parameters = lambda: iter(parameters)  # type: ignore[attr-defined]


def told(model: Any, world_size: int) -> dict[str, float]:
    """The seconds of each part of a step in which every moment is one second after the one before."""
    clock = iter(range(100))
    run = SimpleNamespace(world_size=world_size, step=3, parts={}, moment=lambda: next(clock))
    parts = MODULE.Parts(run, model)
    parts.end("forward")  # before the first step, as in an evaluation
    parts.begin()
    parts.end("copy")
    if isinstance(model, DistributedDataParallel):
        model.call()
        model.module.call()
    parts.end("forward")
    if isinstance(model, DistributedDataParallel):
        model.first.call()
    parts.end_backward()
    parts.end("optimizer")
    parts.stop()
    parts.end("forward")
    found: dict[str, float] = {}
    for name, begin, end in run.parts[3]:
        found[name] = found.get(name, 0.0) + end - begin
    return found


@pytest.mark.parametrize(
    ("model", "world_size", "expected"),
    [
        (Hooked(), 1, {"copy": 1, "forward": 1, "backward": 1, "optimizer": 1}),
        (Hooked(), 2, {"copy": 1, "optimizer": 1}),
        (DistributedDataParallel(), 2, {"copy": 1, "forward": 2, "exchange": 2, "backward": 1, "optimizer": 1}),
        (DistributedDataParallel(old=True), 2, {"copy": 1, "optimizer": 1}),
    ],
)
def test_what_is_waited_for_other_ranks_is_told_where_it_is_known(model: Any, world_size: int, expected: dict[str, float]) -> None:
    assert told(model, world_size) == expected
