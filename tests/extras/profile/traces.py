"""Traces made by hand, in the format of the profiler."""

import itertools
import json
from typing import Any

from workflow.report.profile.layers import EVALUATE
from workflow.report.profile.profile import Layer, Profile, profile_of
from workflow.report.profile.trace import trace_of


class Events:
    """Events in microseconds; a thread is a number."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.links = itertools.count(1)

    def add(self, category: str, name: str, start: float, length: float, thread: int = 1, **args: Any) -> None:
        times = {"ts": start, "dur": length, "pid": 1, "tid": thread}
        self.events.append({"ph": "X", "cat": category, "name": name, **times, "args": args})

    def range(self, name: str, start: float, length: float, thread: int = 1) -> None:
        self.add("user_annotation", name, start, length, thread)

    def forward(self, name: str, start: float, length: float, sequence: int, thread: int = 1) -> None:
        self.add("cpu_op", name, start, length, thread, **{"Sequence number": sequence})

    def backward(self, name: str, start: float, length: float, sequence: int | None, thread: int = 1) -> None:
        known = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": 1}
        self.add("cpu_op", f"{EVALUATE}: {name}", start, length, thread, **known)

    def kernel(self, launch: float, start: float, length: float, name: str = "k", *, thread: int = 1, stream: int = 7, **args: Any) -> None:
        """A kernel, a copy or a memset by its name, and its launch."""
        link = next(self.links)
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        self.add("cuda_runtime", "cudaLaunchKernel", launch, 1, thread, correlation=link)
        self.add(category, name, start, length, 99, stream=stream, device=0, correlation=link, **args)

    def text(self) -> bytes:
        return json.dumps({"traceEvents": self.events}).encode()

    def profile(self) -> Profile:
        return profile_of(trace_of(self.text(), "trace"))


def layers(profile: Profile) -> dict[str, Layer]:
    """Return the layers by their names."""
    return {one.name: one for one in profile.layers}


def times(profile: Profile) -> dict[str, tuple[float, float]]:
    """Return forward and backward microseconds of each layer."""
    return {one.name: (one.forward_ms * 1000, one.backward_ms * 1000) for one in profile.layers}
