"""Read and check the events that a program wrote, one JSON object per line. Programs are not trusted to write well: every field has its
type and its bound here, and a line that is not an event is counted."""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Final, Literal, NamedTuple, get_args, get_type_hints

from base.calls import moved
from base.jsonfile import json_text
from base.logs import level_and_message
from base.sanitize import number, plain, quoted, text, whole
from base.untrusted import Unusable, open_file, open_plain
from workflow.run.record.model import Performance
from workflow.study.cell import Cell

MAX_LINE: Final = 1 << 20
"""Bytes of a line."""
MAX_STEPS: Final = 1_000_000
"""Per rank; so are MAX_KEPT."""
MAX_SECONDS: Final = 1e8
"""Three years: the sum over MAX_STEPS is still a number that the tables take."""
PART_ROUNDING: Final = 0.01
"""How much longer than its step a part may be: a GPU's clock tells both as single-precision milliseconds."""
MAX_FLOP: Final = 1e30
"""The most FLOP of a sample: more than any training has taken in all."""
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
MAX_KEPT: Final = 1000
"""The most events of every other kind; of `checkpoint` and `eval` the last ones count, and replace the last."""
MAX_WARNING: Final = 500
MAX_MESSAGE: Final = 2000
MAX_WORD: Final = 100
MAX_PROVENANCE: Final = 256 << 10
"""Bytes of all that a program tells of its libraries, as a record has them."""

_OF_STEP: Final = b'"seconds"'
"""A key that every step has and no other event."""
_EVENTS_FILE: Final = re.compile(r"events-(0|[1-9][0-9]{0,8})\.jsonl")
Reader = Callable[[object], Any]


def _word(value: object) -> str | None:
    return None if value is None else text(value, MAX_WORD)


def _provenance(value: object) -> Any:
    """Check the provenance that a program reports. A note replaces each value that does not fit into MAX_PROVENANCE."""
    found, left = plain(value), MAX_PROVENANCE
    if not isinstance(found, dict):
        return None
    for key, said in found.items():
        size = len(json_text({key: said}))
        if size > left:
            found[key] = f"left out: {size} bytes, and all of it may have {MAX_PROVENANCE}"
            size = len(json_text({key: found[key]}))
        left -= size
    return found


def _flag(value: object) -> bool:
    return value is True


def _between(most: float) -> Reader:
    """Make a reader of numbers from 0 to `most`; other values become None."""

    def read(value: object) -> float | None:
        found = number(value)
        return None if found is None or not 0 <= found <= most else found

    return read


def _loss(value: object) -> float | None:
    """Read a loss. Values that are not finite stay, since they show that the training failed."""
    return value if isinstance(value, float) and not math.isfinite(value) else number(value)


def _precision(value: object) -> Precision | None:
    return next((known for known in PRECISIONS if value == known), None)


Count = Annotated[int | None, whole]
Seconds = Annotated[float | None, _between(MAX_SECONDS)]
UnixTime = Annotated[float | None, _between(1e11)]
Nanoseconds = Annotated[int | None, partial(whole, most=2**63 - 1)]
Real = Annotated[float | None, number]
Word = Annotated[str | None, _word]
Flag = Annotated[bool, _flag]


class Step(NamedTuple):
    """One step, or the last of `steps` that a line reports at once: their times are means. Where it is kept, `steps` is never None,
    and 0 of the others of one line."""

    step: Annotated[int, whole]
    """number of the step, from 0, over all attempts; required"""
    seconds: Annotated[float, _between(MAX_SECONDS)]
    """s, length of the step; required"""
    input_s: Seconds = None
    """s, part of `seconds`: waiting for its batch"""
    exchange_s: Seconds = None
    """s, part of `seconds`: waiting for the other ranks; left out if that is unknown, or if no rank waits"""
    copy_s: Seconds = None
    """s, part of `seconds`: moving the batch to the device. Parts do not overlap, and each may be left out"""
    forward_s: Seconds = None
    """s, part of `seconds`: forward pass and loss"""
    backward_s: Seconds = None
    """s, part of `seconds`: backward pass"""
    optimizer_s: Seconds = None
    """s, part of `seconds`: update of the parameters"""
    measured: Flag = False
    """true in the measured window"""
    samples: Count = None
    """samples of this rank"""
    tokens: Count = None
    """tokens of this rank"""
    length: Count = None
    """length of the sequences of these tokens, with padding"""
    loss: Annotated[float | None, _loss] = None
    """loss of this rank"""
    monotonic_ns: Nanoseconds = None
    steps: Count = None
    """of output that was read: how many steps the line reported, of which this is the last; `seconds`, `samples` and `tokens` are
    means"""

    @property
    def is_diverged(self) -> bool:
        """Return True if the loss is NaN or infinite."""
        return self.loss is not None and not math.isfinite(self.loss)


class RunStart(NamedTuple):
    """What a rank is and runs with, written when it starts."""

    framework: Word = None
    """name of the framework"""
    framework_version: Word = None
    """its version"""
    rank: Count = None
    """number of the rank"""
    world_size: Count = None
    """number of ranks"""
    device: Word = None
    """`cuda` or `cpu`"""
    parameters: Count = None
    """trainable parameters"""
    flop_per_unit: Annotated[float | None, _between(MAX_FLOP)] = None
    """FLOP of a sample or token"""
    precision: Annotated[Precision | None, _precision] = None
    """precision of these FLOP: `fp32`, `tf32`, `bf16`, `fp16`"""
    provenance: Annotated[Mapping[str, Any] | None, _provenance] = None
    """versions and settings, for the record; at most 256 KiB"""
    steps_source: Word = None
    """`log` or `none`: the adapter of a program without events wrote this"""
    counts_lines: Flag = False
    """true if the lines of the output have no number of a step"""
    drives_all: Flag = False
    """true for the one process of launcher `single` that works for all ranks"""
    hostname: Word = None
    """name of the host"""
    time: UnixTime = None
    monotonic_ns: Nanoseconds = None


class RunStop(NamedTuple):
    """The results of a rank, written when it ends well."""

    time: UnixTime = None
    monotonic_ns: Nanoseconds = None
    norm: Real = None
    """Euclidean norm of the parameters"""
    checksum: Word = None
    """text that two ranks have in common if their parameters are equal to the bit; may be left out"""
    train_s: Seconds = None
    """s, all steps"""
    eval_s: Seconds = None
    """s, evaluation"""
    window_wall_s: Seconds = None
    """s, wall time of the measured window"""
    window_steps_s: Seconds = None
    """s, sum of its steps"""
    max_memory_allocated_bytes: Count = None
    """the most memory that was used"""


class EvalEvent(NamedTuple):
    """Loss and accuracy on a split of the dataset."""

    split: Word = None
    """split of the dataset"""
    loss: Real = None
    """mean loss over all ranks"""
    accuracy: Annotated[float | None, _between(1)] = None
    """0 to 1"""
    samples: Count = None
    """samples in all"""
    step: Count = None
    """steps before it; an evaluation inside of the window is left out of the rate only if this is given"""
    epoch: Annotated[float | None, _between(1e9)] = None
    """epochs before it"""
    eval_s: Seconds = None
    """s, time of the evaluation"""
    time: UnixTime = None


class CheckpointEvent(NamedTuple):
    """A checkpoint that was written; `step` is the first step that is not in it."""

    step: Count = None
    """the first step that is not in it"""
    bytes: Count = None
    """its size"""
    resumable: Flag = False
    """true if a run can resume from it"""


class ErrorEvent(NamedTuple):
    """Why a rank failed, by its own words."""

    kind: Word = None
    """`oom`, `nan`, `storage`, `killed` or `error`"""
    message: Annotated[str | None, partial(text, max_chars=MAX_MESSAGE)] = None
    """what happened, at most 2,000 characters"""
    time: Real = None


class WarningEvent(NamedTuple):
    """A warning for the record."""

    message: Annotated[str, partial(text, max_chars=MAX_WARNING)]
    """what a reader of the numbers must know, at most 500 characters; it becomes a warning of the record"""


class PhaseEvent(NamedTuple):
    """The phase that a rank enters, such as `init` or `train`."""

    phase: Annotated[str, _word]
    """`init`, `warmup`, `train`, `eval`, `checkpoint`, `checksum`; of a program without events `output`"""
    monotonic_ns: Nanoseconds = None


class OtherEvent(NamedTuple):
    """An event of a kind that this version does not know."""


Event = Step | RunStart | RunStop | EvalEvent | CheckpointEvent | ErrorEvent | WarningEvent | PhaseEvent | OtherEvent
KINDS: Final[dict[str, Any]] = {
    "step": Step,
    "run_start": RunStart,
    "run_stop": RunStop,
    "eval": EvalEvent,
    "checkpoint": CheckpointEvent,
    "error": ErrorEvent,
    "warning": WarningEvent,
    "phase": PhaseEvent,
}
Readers = tuple[tuple[str, Reader], ...]


def _readers(kind: Any) -> tuple[Any, Readers, tuple[str, ...]]:
    """Return the type, what reads each of its fields, and the fields that an event must have."""
    hints = get_type_hints(kind, include_extras=True)
    required = tuple(key for key in kind._fields if key not in kind._field_defaults)
    return kind, tuple((key, hint.__metadata__[0]) for key, hint in hints.items()), required


_READERS: Final = {name: _readers(kind) for name, kind in KINDS.items()}


def checked_event(value: Any) -> Event | None:
    """Return the event in the value of a line, or None if it is none or lacks a required field.

    Fields that are not of their type are None; fields that the type does not have are left alone.
    """
    name = value.get("event") if isinstance(value, Mapping) else None
    if not isinstance(name, str):
        return None
    if name not in _READERS:
        return OtherEvent()
    kind, readers, required = _READERS[name]
    found = {key: read(value[key]) for key, read in readers if key in value}
    for key in required:
        if found.get(key) is None:
            return None
    event: Event = kind(**found)
    return event


class Pause(NamedTuple):
    """The phase `eval` between the steps `step` - 1 and `step`, by the rank's monotonic clock."""

    step: int
    begin_ns: int
    end_ns: int


@dataclass
class RankEvents:
    """All events of one rank. `steps` by step number, in their order; of a step that is reported again the first line counts."""

    start: RunStart | None = None
    steps: dict[int, Step] = field(default_factory=dict)
    evals: list[EvalEvent] = field(default_factory=list)
    evaluated: set[int] = field(default_factory=set)
    """The steps before which an evaluation was told, also of those that are not kept."""
    pauses: list[Pause] = field(default_factory=list)
    errors: list[ErrorEvent] = field(default_factory=list)
    checkpoints: list[CheckpointEvent] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stop: RunStop | None = None
    phase: str | None = None
    _evaluates_since: int | None = None
    most: int = MAX_STEPS
    """How many steps are kept: those that the cell asks for."""
    beyond: int = 0
    """Steps that came after as many, and were left out."""
    broken_lines: int = 0
    no_count: str | None = None
    """What the first step reported of its samples or tokens that is no number of them, in words."""
    not_finite: int | None = None
    """The first step with a loss that is NaN or infinite."""

    @property
    def head(self) -> RunStart:
        """Return run_start, without any value where the rank wrote none."""
        return self.start or RunStart()

    def add(self, value: Any) -> None:
        """Take the value of one line; what is not an event is counted."""
        event = checked_event(value)
        if event is None:
            self.broken_lines += 1
        elif isinstance(event, Step):
            self.no_count = self.no_count or _no_count(value, event)
            self.broken_lines += not self._add_step(event)
        else:
            self._keep(event)

    def _keep(self, event: Event) -> None:
        match event:
            case RunStart() as start:
                self.start = start
            case RunStop() as stop:
                self.stop = stop
            case EvalEvent() as evaluation:
                self.evals[MAX_KEPT - 1 :] = [evaluation]
                if evaluation.step is not None and len(self.evaluated) < self.most_pauses:
                    self.evaluated.add(evaluation.step)
            case CheckpointEvent() as checkpoint:
                self.checkpoints[MAX_KEPT - 1 :] = [checkpoint]
            case ErrorEvent() as error if len(self.errors) < MAX_KEPT:
                self.errors.append(error)
            case WarningEvent() as warning if len(self.warnings) < MAX_KEPT:
                self.warnings.append(warning.message)
            case PhaseEvent() as phase:
                self._enter(phase)

    @property
    def most_pauses(self) -> int:
        """Return how many evaluations between steps are taken out of the time of the steps."""
        return max(MAX_KEPT, self.most)

    @property
    def next_step(self) -> int:
        """Return the step that follows the last one that was told."""
        return next(reversed(self.steps), -1) + 1

    def _enter(self, event: PhaseEvent) -> None:
        self.phase, begin_ns = event.phase, self._evaluates_since
        if event.phase == "eval":
            self._evaluates_since = event.monotonic_ns if begin_ns is None else begin_ns
            return
        self._evaluates_since = None
        if begin_ns is None or event.monotonic_ns is None or event.monotonic_ns <= begin_ns:
            return
        if len(self.pauses) < self.most_pauses:
            self.pauses.append(Pause(self.next_step, begin_ns, event.monotonic_ns))

    def _add_step(self, event: Step) -> bool:
        """Keep the steps of an event. Of `steps` that end with it, each is as the event says, and only the last one has a loss."""
        last, count = event.step, max(1, event.steps or 1)
        numbers = range(last - count + 1, last + 1)
        if numbers.start < 0 or count > MAX_STEPS:
            return False
        kept = numbers[: self.most - len(self.steps)]
        if any(one in self.steps for one in kept):
            return False
        self.beyond += count - len(kept)
        loss = event.loss
        if event.is_diverged:
            loss, self.not_finite = None, last if self.not_finite is None else self.not_finite
        step = event._replace(
            input_s=None if event.input_s is None else min(event.input_s, event.seconds),
            exchange_s=event.exchange_s if event.exchange_s is not None and event.exchange_s <= event.seconds else None,
            loss=loss,
            copy_s=_within(event.copy_s, event.seconds),
            forward_s=_within(event.forward_s, event.seconds),
            backward_s=_within(event.backward_s, event.seconds),
            optimizer_s=_within(event.optimizer_s, event.seconds),
            steps=count,
        )
        before = self.steps.get(numbers.start - 1)
        least_ns = (before.monotonic_ns if before is not None else None) or 0
        for one in kept:
            end_ns = step.monotonic_ns
            ended = None if end_ns is None else min(end_ns, max(least_ns, end_ns - int((last - one) * step.seconds * 1e9)))
            self.steps[one] = step if one == last else step._replace(step=one, loss=None, monotonic_ns=ended, steps=0)
        return True


def _within(part_s: float | None, step_s: float) -> float | None:
    """Return a part of a step, or None where it is longer than the step by more than rounding."""
    return None if part_s is None or part_s > step_s * (1 + PART_ROUNDING) else min(part_s, step_s)


def _no_count(value: Mapping[str, object], event: Step) -> str | None:
    for key, count in (("samples", event.samples), ("tokens", event.tokens)):
        if value.get(key) is not None and count is None:
            return f"{quoted(value[key])} {key} in its step {event.step}"
    return None


def _any_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= 20 else math.inf


_DECODER: Final = json.JSONDecoder(parse_int=_any_integer)


def parse_line(line: bytes | str) -> Any:
    """Parse the JSON value in one line.

    None when it is not JSON, or longer than MAX_LINE. Its numbers and texts are still to be checked.
    """
    if len(line) > MAX_LINE:
        return None
    try:
        return _DECODER.decode(line if isinstance(line, str) else line.decode())
    except (ValueError, RecursionError):
        return None


def parse_events(lines: Iterable[bytes], most: int = MAX_STEPS) -> RankEvents:
    """Return the events in lines that end in a newline; a last one without it was torn by the program's end and is dropped. `most`: how
    many steps are kept."""
    events = RankEvents(most=most)
    for line in lines:
        if len(events.steps) >= most and _OF_STEP in line:
            events.beyond += 1  # to read a million of them takes seconds
        elif line.endswith(b"\n"):
            events.add(parse_line(line))
    return events


def read_events(directory: Path, world_size: int, most: int = MAX_STEPS) -> dict[int, RankEvents]:
    """Return the events of every rank that has a file in `directory`. `most`: how many steps of a rank are kept."""
    found = {}
    for rank in _ranks_there(directory, world_size):
        path = directory / f"events-{rank}.jsonl"
        moved()
        try:
            descriptor = open_file(path)
        except (FileNotFoundError, Unusable):
            continue
        with os.fdopen(descriptor, "rb") as file:
            found[rank] = parse_events(bounded_lines(file), most)
    return found


def _ranks_there(directory: Path, world_size: int) -> list[int]:
    """Return the ranks below `world_size` that have a file. The directory is listed: a damaged record may give any `world_size`."""
    try:
        found = [_EVENTS_FILE.fullmatch(name) for name in os.listdir(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(rank for match in found if match and (rank := int(match[1])) < world_size)


def bounded_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file. An empty line, which is not an event, replaces each that is longer than MAX_LINE."""
    while line := file.readline(MAX_LINE + 1):
        piece = line
        while len(piece) > MAX_LINE and not piece.endswith(b"\n"):
            piece = file.readline(MAX_LINE + 1)
        yield line if len(line) <= MAX_LINE else b"\n"


# The last lines of a log, read without reading all of it.


TAIL_BYTES: Final = 1 << 20
"""The last error is near the end."""
SHORT_BYTES: Final = 8192


def last_error(log: Path) -> str | None:
    """Return the last error message in a log, or None if there is no error or no log."""
    errors = [message for level, message in messages(log) if level == "ERROR"]
    return errors[-1] if errors else None


def messages(log: Path, most: int = TAIL_BYTES) -> list[tuple[str, str]]:
    """Return level and message of the first line of each message in the last `most` bytes of a log, and what follows its colon."""
    try:
        lines = end_of_log(log, most).splitlines()
    except OSError:
        return []
    found: list[tuple[str, str]] = []
    for line in lines:
        if (one := level_and_message(line)) is not None:
            found.append(one)
        elif found and found[-1][1].endswith(":") and line.startswith("  "):  # the first of a list
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def end_of_log(log: Path | str, most: int = TAIL_BYTES) -> str:
    """Return the last `most` bytes of a log. Raises OSError."""
    with os.fdopen(open_plain(Path(log)), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most).decode(errors="replace")


# The check of the trained network by its parameter count, the one fact that every framework can report.


def wrong_model(events: Mapping[int, RankEvents], model: str, parameters: int) -> str | None:
    """Explain why this is no run of `model`, which has this number of parameters. None where nothing contradicts it."""
    for rank, told in _parameter_counts(events).items():
        if told is not None and told != parameters:
            return f"the program trained another network: {model} has {parameters} parameters here, and rank {rank} tells of {told}"
    return None


def unchecked_model(events: Mapping[int, RankEvents], model: str) -> list[str]:
    """Warn where ranks that did steps do not report the parameter count, so that it was not compared."""
    told = _parameter_counts(events)
    silent = [rank for rank, parameters in told.items() if parameters is None and events[rank].steps]
    if not silent:
        return []
    who = "the program" if len(silent) == len(told) else f"rank {silent[0]}"
    return [f"{who} does not tell how many parameters its network has: whether it is {model} was not checked"]


def _parameter_counts(events: Mapping[int, RankEvents]) -> dict[int, int | None]:
    return {rank: entry.head.parameters for rank, entry in sorted(events.items())}


# The source of the steps: the program by events, its output by lines that an expression matched, or nobody.
#
# The adapter that writes the events of a program which writes none (containers/lib/slipway_log.py) says so in run_start.


Source = Literal["program", "log", "none"]


class ReportingRanks(NamedTuple):
    """The ranks that are to report steps: their events, and how many they are."""

    source: Source
    events: Mapping[int, RankEvents]
    num_ranks: int


def drives_all(events: Mapping[int, RankEvents]) -> bool:
    """Return True if rank 0 is the only process of the run and works for all ranks (launcher single): its events are those of all."""
    return 0 in events and events[0].head.drives_all


def processes(events: Mapping[int, RankEvents], world_size: int) -> int:
    """Return how many ranks are processes of their own, and write events."""
    return 1 if drives_all(events) else world_size


def reporting_ranks(events: Mapping[int, RankEvents], world_size: int) -> ReportingRanks:
    """Select the ranks whose steps count, and their source.

    Ranks whose output is not read count as silent only beside a rank 0 whose output is read.
    """
    world_size = processes(events, world_size)
    said = {rank: entry.head.steps_source for rank, entry in events.items()}
    silent = {rank for rank, word in said.items() if word == "none"}
    if len(silent) == world_size:
        return ReportingRanks("none", {}, 0)
    if said.get(0) != "log":
        return ReportingRanks("program", events, world_size)
    return ReportingRanks("log", {rank: entry for rank, entry in events.items() if rank not in silent}, world_size - len(silent))


def slack(performance: Performance | None) -> int:
    """Return by how many steps a window that was read from output may be shorter than the requested one: its lines do not begin and end
    where the window does.
    """
    return 2 * ((performance and performance.steps_together) or 1)


# The number of steps that a run was asked for, compared with what its ranks reported.
#
# What a run did is what its events tell: a program that ends well without its steps has measured nothing, and is no `ok`.


MAX_WARMUP_OF_EPOCHS: Final = 10
MAX_CAUSES: Final = 3
"""Warnings about the lines of the output, such as that many came together, that a reason repeats."""


class RequestedSteps(NamedTuple):
    """The steps that are requested of each rank: in all, and in the measured window."""

    total: int
    measured: int


def requested_steps(cell: Cell, train_samples: int, first: int = 0) -> RequestedSteps:
    """Compute the steps that are left from step `first` on.

    The request is `steps` {warmup, measured, total?}, or `epochs` of so many samples. After a resume the warm-up is repeated, and as
    much of the window as there is room for. The result is at most what is kept of a rank's events.
    """
    if cell.steps is None:
        total = (cell.epochs or 0) * (train_samples // cell.global_batch_size)
        warmup = min(MAX_WARMUP_OF_EPOCHS, total // 5)
        measured = total - warmup
    else:
        warmup, measured = cell.steps["warmup"], cell.steps["measured"]
        total = cell.steps.get("total") or warmup + measured
    left = min(max(0, total - first), MAX_STEPS)
    return RequestedSteps(left, min(measured, max(0, left - warmup)))


def most_steps(cell: Cell, asked: RequestedSteps | None) -> int:
    """Return how many steps of a rank are kept: all that the cell asks for, also after a resume; of `epochs` those that are `asked`."""
    if cell.epochs is None:
        return requested_steps(cell, 0).total
    return MAX_STEPS if asked is None else asked.total


def too_few_lines(events: Mapping[int, RankEvents], asked: RequestedSteps) -> str | None:
    """Find the first rank with fewer steps than requested, where steps are read from output.

    Lines that report several steps need not begin and end where the window does.
    """
    for rank, entry in sorted(events.items()):
        causes = "; ".join(entry.warnings[:MAX_CAUSES])
        if not entry.steps:
            told = "no line of its output (`slipway logs RUN` shows it) told of a step"
            return f"rank {rank} ended well, and {told}: {causes or 'the expression under events matched none'}"
        measured, reached = sum(step.measured for step in entry.steps.values()), max(entry.steps) + 1
        together = max(step.steps or 0 for step in entry.steps.values() if step.measured or not measured)
        if measured < max(min(1, asked.measured), asked.measured - 2 * together) or reached < asked.total - together:
            told = f"its output told of {measured} of the {asked.measured} measured steps that were asked"
            told += f", up to step {reached} of {asked.total}, {together} to a line"
            return f"rank {rank} ended well, and {told}{causes and f': {causes}'}"
    return None


def too_few_steps(events: Mapping[int, RankEvents], asked: RequestedSteps) -> str | None:
    """Find the first rank that reports fewer steps than requested, measured ones first.

    How many samples they hold, and whether all ranks measure the same steps, are warnings of the record.
    """
    for rank, entry in sorted(events.items()):
        measured = sum(step.measured for step in entry.steps.values())
        if measured < asked.measured:
            return f"rank {rank} ended well, and wrote {measured} of the {asked.measured} measured steps that were asked"
        if len(entry.steps) < asked.total:
            return f"rank {rank} ended well, and wrote {len(entry.steps)} of the {asked.total} steps that were asked"
    return None
