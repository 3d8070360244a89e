"""Write TensorBoard's event files, one directory per run: losses, rates, step times, evaluations.

The format is TFRecord (length, masked CRC-32C, bytes, masked CRC-32C) of the message tensorflow.Event. It is written here, in the few
fields that scalars need, so that no library of TensorBoard is needed.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from base.publish import publish
from extras.export.runs import ExportedRun
from workflow.run.record.events import RankEvents, Step
from workflow.run.record.rate import mean_losses
from workflow.study.cell import unit_of

NEXT: Final = "tensorboard --logdir {to}"
VERSION: Final = "brain.Event:2"
POLYNOMIAL: Final = 0x82F63B78
"""The polynomial of CRC-32C (Castagnoli), its bits reversed."""
MASK: Final = 0xA282EAD8
DOUBLE, BYTES, FLOAT, VARINT = 1, 2, 5, 0


class Scalar(NamedTuple):
    """One number at one step; `time` is unix seconds."""

    time: float
    step: int
    tag: str
    value: float


def export(runs: Sequence[ExportedRun], to: Path) -> int:
    """Write <to>/<run>/events.out.tfevents.slipway of each run that has steps, as Format has it."""
    written = 0
    for run in runs:
        content = event_file(scalars(run.events(), unit_of(run.cell), _start(run.record)))
        if content is not None:
            (to / run.run_id).mkdir(exist_ok=True)
            publish(to / run.run_id / "events.out.tfevents.slipway", content)
            written += 1
    return written


def _start(record: Mapping[str, Mapping[str, str]]) -> float:
    return datetime.fromisoformat(record["time"]["start"]).timestamp()


def scalars(events: Mapping[int, RankEvents], unit: str, start: float) -> list[Scalar]:
    """Return the scalars of one run, in order of the steps. `unit`: what a rate counts; `start`: of the run, to which the ranks' clocks
    are added. `loss` is the mean over the ranks; `rate/<unit>_per_s` is what all ranks did in a step / the time of its slowest rank."""
    ranks = [rank.steps for rank in events.values() if rank.steps]
    if not ranks:
        return []
    losses = dict(mean_losses({index: rank for index, rank in enumerate(events.values()) if rank.steps}, len(ranks)))
    begun = min((step.monotonic_ns for step in ranks[0].values() if step.monotonic_ns is not None), default=0)
    found: list[Scalar] = []
    passed = 0.0
    for number in sorted(set(ranks[0]).intersection(*ranks[1:])):
        steps = [rank[number] for rank in ranks]
        slowest = max(step.seconds for step in steps)
        end_ns = steps[0].monotonic_ns
        passed = passed + slowest if end_ns is None else (end_ns - begun) / 1e9
        found += (Scalar(start + passed, number, tag, value) for tag, value in _of_step(steps, slowest, unit, losses.get(number)))
    last = found[-1] if found else Scalar(start, 0, "", 0.0)
    for evaluation in events[min(events)].evals:
        told = (("eval/loss", evaluation.loss), ("eval/accuracy", evaluation.accuracy))
        place = last
        if evaluation.step is not None and evaluation.step < last.step:
            place = last._replace(time=evaluation.time or last.time, step=evaluation.step)
        found += (Scalar(place.time, place.step, tag, value) for tag, value in told if value is not None)
    return found


def _of_step(steps: Sequence[Step], slowest: float, unit: str, loss: float | None) -> Iterator[tuple[str, float]]:
    if loss is not None:
        yield "loss", loss
    counts = [step.tokens if unit == "tokens" else step.samples for step in steps]
    known = [count for count in counts if count is not None]
    if slowest > 0 and len(known) == len(steps):
        yield f"rate/{unit}_per_s", sum(known) / slowest
    yield "time/step_s", slowest
    waits = [step.input_s for step in steps if step.input_s is not None]
    if waits:
        yield "time/input_s", max(waits)


def event_file(found: Iterable[Scalar]) -> bytes | None:
    """Return the bytes of an event file; None where there is nothing to tell."""
    records = [record(event(one)) for one in found]
    if not records:
        return None
    first = record(_field(1, DOUBLE, struct.pack("<d", 0.0)) + _text(3, VERSION.encode()))
    return b"".join([first, *records])


def event(scalar: Scalar) -> bytes:
    """Encode a tensorflow.Event: wall_time = 1, step = 2, summary = 5 {value = 1 {tag = 1, simple_value = 2}}."""
    value = _text(1, scalar.tag.encode()) + _field(2, FLOAT, struct.pack("<f", _as_float(scalar.value)))
    return _field(1, DOUBLE, struct.pack("<d", scalar.time)) + _field(2, VARINT, _varint(scalar.step)) + _text(5, _text(1, value))


def _as_float(value: float) -> float:
    """Limit a number to what 32 bits can hold."""
    most = 3.4028234e38
    return max(-most, min(most, value))


def record(data: bytes) -> bytes:
    """Encode one record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C, turned by 15 bits and added to, since a CRC of data that holds CRCs tells little."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        found.append(crc)
    return tuple(found)


_TABLE: Final = _table()


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _field(number: int, kind: int, data: bytes) -> bytes:
    return _varint(number << 3 | kind) + data


def _text(number: int, data: bytes) -> bytes:
    return _field(number, BYTES, _varint(len(data)) + data)
