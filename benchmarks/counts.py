"""Programs that count their steps and samples in other ways than one expects, with clocks of their own, so that the true rate is known.

They are run by the code of a run; `python -m benchmarks.marks --only counts` prints how wrong their rates are, and which marks say so.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import polars as pl

from tests.containers.specs import library
from workflow.report.cells import RUN_MARKS
from workflow.run.record.events import RankEvents, RequestedSteps, read_events
from workflow.run.record.run_record import Measurements, measured

AIM: Final = 0.02
MARKS: Final = ("samples", "assumed", "warned", "stalls", "input", "gaps")
STEPS: Final = {"warmup": 10, "measured": 100}
ASKED: Final = RequestedSteps(110, 100)


@dataclass
class Program:
    """A training with a clock of its own. A sample takes `sample_s`; an epoch has `epoch` batches of `batch` samples, the last one `last`.
    `done`: samples after each step, and when it ended."""

    rng: np.random.Generator
    asked: int = 32
    """`batch_size` of the study."""
    now: float = 1000.0
    done: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batch = self.asked
        self.epoch = int(self.rng.integers(8, 40))
        self.last = int(self.rng.integers(1, self.batch))
        self.sample_s = float(self.rng.uniform(0.5e-3, 2e-3))

    def train(self, samples: int) -> None:
        """Do a step."""
        self.now += samples * self.sample_s
        self.done.append((samples, self.now))

    def sizes(self) -> list[int]:
        """Return the samples of the batches of an epoch."""
        return [self.batch] * (self.epoch - 1) + [self.last]

    def truth(self, steps: int = 1) -> float:
        """Return the samples per second of its measured steps; `steps`: how many it does in what it should call one."""
        first, end = STEPS["warmup"] * steps, (STEPS["warmup"] + STEPS["measured"]) * steps
        window = self.done[first:end]
        return sum(samples for samples, _ in window) / (window[-1][1] - self.done[first - 1][1])

    def helped(self, loop: Callable[[Any], None]) -> Measurements:
        """Run a loop that uses slipway_events; what the record has of it."""
        module = library("slipway_events")
        module.__dict__["time"] = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        cell = {"steps": STEPS, "batch_size": self.asked, "global_batch_size": self.asked, "device": "cpu"}
        with tempfile.TemporaryDirectory() as out:
            run = module.Run(cell, out, {})
            loop(run)
            run.finish()
            run.events.file.close()
            return self.record(read_events(Path(out), 1)[0])

    def printed(self, lines: Iterator[str], expression: str, **settings: Any) -> Measurements:
        """Run a loop that prints lines; what the record has of it."""
        steps = library("slipway_steps").Steps({"step": expression, **settings}, STEPS, self.now)
        events = RankEvents()
        events.add({"event": "run_start", "steps_source": "log", "counts_lines": steps.counts_lines})
        for line in lines:
            event = steps.take([line], self.now)
            if event is not None:
                events.add({"event": "step", "monotonic_ns": round(self.now * 1e9), **event})
        for sentence in steps.warnings():
            events.add({"event": "warning", "message": sentence})
        events.add({"event": "run_stop"})
        return self.record(events)

    def record(self, events: RankEvents) -> Measurements:
        """Return what run_record.measured finds."""
        return measured({0: events}, 1, self.asked, "train", None, ASKED)


def arrays(samples: int) -> tuple[Any, Any]:
    """Return a batch of images and labels."""
    return np.empty((samples, 3)), np.empty(samples)


def epochs(program: Program, batch: Callable[[int], Any] = arrays, validation: int = 0) -> Callable[[Any], None]:
    """Return a loop over epochs, with so many batches of a validation, three times as fast, that go through run.steps too."""

    def loop(run: Any) -> None:
        for _ in run.epochs(1000):
            for _, size in zip(run.steps([batch(size) for size in program.sizes()]), program.sizes(), strict=False):
                program.train(size)
            if validation:
                for _ in run.steps([batch(program.batch)] * validation):
                    program.now += program.batch * program.sample_s / 3

    return loop


def lines(program: Program, text: str, steps: int = 110, every: int = 1, validation: int = 0, latency: float = 1.0) -> Iterator[str]:
    """Yield the lines of so many steps, of `validation` batches after each epoch likewise."""
    for step in range(1, steps + 1):
        size = program.sizes()[(step - 1) % program.epoch]
        program.train(size)
        if step % every == 0:
            yield text.format(step=step, samples=size, ms=1000 * latency * size * program.sample_s)
        if validation and step % program.epoch == 0:
            for _ in range(validation):
                program.now += program.batch * program.sample_s / 3
                yield text.format(step=step, samples=program.batch, ms=0)


def counted(program: Program) -> tuple[Measurements, float]:
    """Batches of arrays, the last one of an epoch smaller."""
    return program.helped(epochs(program)), program.truth()


def full(program: Program) -> tuple[Measurements, float]:
    """Batches of arrays, all full."""
    program.last = program.batch
    return counted(program)


def uncounted(program: Program) -> tuple[Measurements, float]:
    """Batches that nobody can count, the last one of an epoch smaller."""
    return program.helped(epochs(program, lambda size: ["a sample"] * size)), program.truth()


def own_batch(program: Program) -> tuple[Measurements, float]:
    """Batches of arrays, twice as large as the study says."""
    program.batch = program.last = 2 * program.asked
    return counted(program)


def own_batch_uncounted(program: Program) -> tuple[Measurements, float]:
    """The same, and nobody can count them."""
    program.batch = program.last = 2 * program.asked
    return uncounted(program)


def validated(program: Program) -> tuple[Measurements, float]:
    """A validation goes through run.steps."""
    return program.helped(epochs(program, validation=int(program.rng.integers(1, 5)))), program.truth()


NUMBERED: Final = r"step (?P<step>\d+)"


def log_counted(program: Program) -> tuple[Measurements, float]:
    """Lines with step and samples, the last batch of an epoch smaller."""
    return program.printed(lines(program, "step {step} of {samples}"), rf"{NUMBERED} of (?P<samples>\d+)"), program.truth()


def log_full(program: Program) -> tuple[Measurements, float]:
    """The same, all batches full."""
    program.last = program.batch
    return log_counted(program)


def log_uncounted(program: Program) -> tuple[Measurements, float]:
    """Lines without samples, of a program with a batch twice as large as the study says."""
    program.batch = program.last = 2 * program.asked
    return program.printed(lines(program, "step {step}"), NUMBERED), program.truth()


def log_every(program: Program) -> tuple[Measurements, float]:
    """A line for ten steps without their number, and `every` was forgotten."""
    program.last = program.batch
    return program.printed(lines(program, "loss 1.0 of {samples}", 1100, 10), r"(?P<loss>1.0) of (?P<samples>\d+)"), program.truth(10)


def log_validated(program: Program) -> tuple[Measurements, float]:
    """An expression without a number of steps, which matches lines of the validation too."""
    program.last = program.batch
    validation = int(program.rng.integers(1, 5))
    found = program.printed(lines(program, "loss 1.0 of {samples}", validation=validation), r"(?P<loss>1.0) of (?P<samples>\d+)")
    return found, program.truth()


def log_latencies(program: Program) -> tuple[Measurements, float]:
    """Lines with latencies of two batches in flight."""
    program.last = program.batch
    expression = rf"{NUMBERED} of (?P<samples>\d+) in (?P<milliseconds>\S+)"
    return program.printed(lines(program, "step {step} of {samples} in {ms}", latency=2), expression), program.truth()


PROGRAMS: Final[tuple[Callable[[Program], tuple[Measurements, float]], ...]] = (
    *(full, counted, uncounted, own_batch, own_batch_uncounted, validated),
    *(log_full, log_counted, log_uncounted, log_every, log_validated, log_latencies),
)
REPORTING: Final = (full, log_full)
"""Those that do what the study says and report it: a mark of their rate is false."""


def marks_of(found: Measurements, asked: int) -> list[str]:
    """Return the MARKS that a table shows beside the rate."""
    columns = {
        name: getattr(found.performance, name) for name in ("assumed", "samples", "samples_reported", "num_measured_steps", "uneven_cause")
    }
    warnings = [*found.warnings, *found.window_findings]
    row = {**columns, "unit": "samples", "mode": "train", "global_batch_size": asked, "warnings": warnings, "busy": []}
    frame = pl.DataFrame([row], schema_overrides={name: pl.List(pl.String) for name in ("assumed", "warnings", "busy")})
    return [mark for mark in MARKS if frame.select(RUN_MARKS[mark].fill_null(value=False)).item()]


def measure(program: Callable[[Program], tuple[Measurements, float]], seed: int) -> tuple[float, list[str]]:
    """Return the error of the rate in parts of the true one, and its marks."""
    own = Program(np.random.default_rng(seed))
    found, truth = program(own)
    assert found.performance is not None
    assert found.performance.samples_per_s is not None
    return found.performance.samples_per_s / truth - 1, marks_of(found, own.asked)
