"""Read the trace that torch.profiler (Kineto) exports: ranges of processor threads, activities of GPUs, steps.

No part of a trace is trusted: an event of another form is left out and counted, a file of another form refused. Moments are in
microseconds from an origin that nobody knows. The bounds: a trace of 1 GB of text needs about 2 GB of memory.
"""

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from base.errors import RecordError
from base.sanitize import ascii_int, number, text, whole
from base.untrusted import open_plain

MAX_TEXT_BYTES: Final = 2 << 30
MAX_EVENTS: Final = 8_000_000
MAX_BRACES: Final = 5 * MAX_EVENTS
"""An event has two, and names of kernels have some."""
MAX_COMMAS: Final = 100
"""An event has 5 to 30; what has many more for each brace is a list of numbers, which would need 40 times its size."""
PIECE: Final = 4 << 20
MAX_NAME: Final = 500
STEP: Final = re.compile(r"(step:|ProfilerStep#) ?(\d{1,18})")

Kind = Literal["operator", "range", "launch"]
KINDS: Final[Mapping[str, Kind]] = {
    "cpu_op": "operator",
    "user_annotation": "range",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
}
ACTIVITIES: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "set",
}


class Span(Struct, frozen=True, gc=False):
    """What one thread of a processor did from `start` to `end`: an operator, a range, or a call that starts an activity of a GPU."""

    kind: Kind
    name: str
    start: float
    end: float
    sequence: int | None
    """The number of the autograd node that a forward operator made, or that a backward operator is."""
    is_backward: bool
    """True if it is a backward operator: those alone have the number of the thread that made the node."""
    link: int | None
    """The correlation id; launches alone have it."""


class Activity(Struct, frozen=True, gc=False):
    """What a GPU did: a kernel, a copy or a memset."""

    kind: str
    name: str
    start: float
    end: float
    device: int
    stream: int
    link: int | None
    num_bytes: int | None


class Step(Struct, frozen=True):
    """A range `step:<n>` or `ProfilerStep#<n>`."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One trace, read and sorted."""

    threads: Mapping[tuple[str, str], Sequence[Span]]
    """(process, thread) -> its spans by their starts, of equal ones the longest first."""
    activities: Sequence[Activity]
    steps: tuple[Step, ...]
    devices: tuple[str, ...]
    num_left_out: int
    """Events without a valid time, or of another form."""


_Number = int | float | str | None


class _Args(Struct, gc=False):
    sequence: _Number = field(default=None, name="Sequence number")
    forward_thread: _Number = field(default=None, name="Fwd thread id")
    correlation: _Number = None
    stream: _Number = None
    device: _Number = None
    bytes: _Number = None


class _Event(Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: _Number = None
    tid: _Number = None
    ts: _Number = None
    dur: _Number = None
    args: _Args | None = None


class _Device(Struct):
    name: str = ""


class _File(Struct):
    trace_events: list[msgspec.Raw] | UnsetType = field(default=UNSET, name="traceEvents")
    devices: list[_Device] = field(default_factory=list, name="deviceProperties")


def read_trace(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> Trace:
    """Read a trace, plain or gzipped. Raises RecordError where it cannot be read, is none, or has more than `max_bytes` of text."""
    try:
        content = _content(path, max_bytes)
        return trace_of(content, path)
    except MemoryError as error:
        raise RecordError(f"{path}: this trace is too large for the memory of this machine; profile fewer steps") from error


def _content(path: Path, max_bytes: int) -> bytearray:
    content = bytearray()
    try:
        with os.fdopen(open_plain(path), "rb") as plain, _unpacked(plain) as file:
            while piece := file.read(PIECE):
                content += piece
                if len(content) > max_bytes:
                    raise RecordError(f"{path} has more than {max_bytes >> 20} MiB of text; profile fewer steps")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RecordError(f"{path} cannot be unpacked ({error}): it was cut or damaged") from error
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return content


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[return-value]


def trace_of(content: bytes | bytearray, where: Path | str) -> Trace:
    """Return the trace that a text is. Raises RecordError, which begins with `where`, where it is none."""
    try:
        braces = content.count(b"{")
        if content.count(b",") > MAX_COMMAS * braces + MAX_EVENTS:
            raise RecordError(f"{where} is no trace: it is a list of something else")
        if braces > MAX_BRACES:
            raise RecordError(f"{where} has too many events; profile fewer steps")
        if content[: content.find(b"{")].strip() == b"[":  # the other form of the format: the events alone
            found = _File(msgspec.json.decode(content, type=list[msgspec.Raw]), [])
        else:
            found = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{where} is no trace ({error})") from error
    if isinstance(found.trace_events, UnsetType):
        raise RecordError(f"{where} is no trace: it has no traceEvents; export it by `prof.export_chrome_trace(...)`")
    if len(found.trace_events) > MAX_EVENTS:
        raise RecordError(f"{where} has {len(found.trace_events)} events, more than {MAX_EVENTS}; profile fewer steps")
    devices = tuple(dict.fromkeys(text(one.name, 100) for one in found.devices[:64]))
    reading = _Reading()
    reading.take(found.trace_events)
    if not reading.threads and not reading.activities:
        raise RecordError(f"{where} has no operators and no kernels: it is no trace of torch.profiler since PyTorch 1.12, or of no work")
    return reading.trace(devices)


class _Reading:
    """What was read of the events so far."""

    def __init__(self) -> None:
        self.threads: dict[tuple[str, str], list[Span]] = {}
        self.activities: list[Activity] = []
        self.steps: list[Step] = []
        self.names: dict[str, str] = {}
        self.num_left_out = 0

    def take(self, events: Sequence[msgspec.Raw]) -> None:
        decode = msgspec.json.Decoder(_Event).decode
        for raw in events:
            try:
                event = decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.num_left_out += 1
                continue
            category = event.cat or ""
            if event.ph == "X" and (category in KINDS or category in ACTIVITIES):
                self._complete(event, category, event.args or _Args())

    def _complete(self, event: _Event, category: str, args: _Args) -> None:
        start, duration = _moment(event.ts), _moment(event.dur)
        if start is None or duration is None or duration < 0:
            self.num_left_out += 1
            return
        name = self._name(event.name)
        if category in ACTIVITIES:
            self._activity(name, start, start + duration, ACTIVITIES[category], args)
        else:
            thread = (str(event.pid), str(event.tid))
            if STEP.fullmatch(name):
                self.steps.append(Step(name, start, start + duration))
            is_backward = bool(whole(args.forward_thread))
            link = whole(args.correlation)
            span = Span(KINDS[category], name, start, start + duration, whole(args.sequence), is_backward, link)
            self.threads.setdefault(thread, []).append(span)

    def _activity(self, name: str, start: float, end: float, kind: str, args: _Args) -> None:
        stream = ascii_int(args.stream) if isinstance(args.stream, str) else whole(args.stream)
        if stream is None:
            self.num_left_out += 1
            return
        self.activities.append(
            Activity(kind, name, start, end, whole(args.device) or 0, stream, whole(args.correlation), whole(args.bytes))
        )

    def _name(self, name: str | None) -> str:
        known = self.names.get(name or "")
        if known is None:
            known = self.names[name or ""] = text(name or "", MAX_NAME).replace("\n", " ").replace("\t", " ")
        return known

    def trace(self, devices: tuple[str, ...]) -> Trace:
        for spans in self.threads.values():
            spans.sort(key=lambda span: (span.start, -span.end))
        self.activities.sort(key=lambda one: (one.start, one.end))
        return Trace(
            threads=self.threads,
            activities=self.activities,
            steps=tuple(_chosen(self.steps)),
            devices=devices,
            num_left_out=self.num_left_out,
        )


def _moment(value: _Number) -> float | None:
    found = number(value)
    return found if found is not None and math.isfinite(found) and abs(found) < 2**53 else None


def _chosen(found: list[Step]) -> Iterator[Step]:
    """Yield the steps: where both forms are there those of the program, of nested ones the outer ones."""
    own = [step for step in found if step.name.startswith("step:")] or found
    end = -math.inf
    for step in sorted(own, key=lambda step: (step.start, -step.end)):
        if step.end > end:
            end = step.end
            yield step
