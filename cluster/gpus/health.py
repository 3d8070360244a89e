"""What driver and kernel know to be wrong with GPUs, before anything runs on them: errors of memory, Xids, held-down clocks."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from base.command import describe, run
from base.errors import SlipwayError
from base.foreign import digits
from cluster.gpus.listing import bus_key
from cluster.limits import GPU_USE_S, XID_RECENT_S
from cluster.types import GpuFault

logger = logging.getLogger(__name__)

Bus = tuple[int, int, int, int]
"""As listing.bus_key has it."""

ECC: Final = "ecc.errors.uncorrected.volatile.total"
THROTTLE: Final = "clocks_throttle_reasons.active"
THROTTLE_SINCE_535: Final = "clocks_event_reasons.active"
FIELDS: Final = ("uuid", "pci.bus_id", ECC, "retired_pages.pending", "remapped_rows.pending", "remapped_rows.failure", THROTTLE)
"""Of `nvidia-smi --help-query-gpu`; a driver that does not know one of the last five names it, and is asked without."""
YES: Final = {
    "retired_pages.pending": "memory pages wait to be retired, which a reset of the GPU does",
    "remapped_rows.pending": "rows of its memory wait to be remapped, which a reset of the GPU does",
    "remapped_rows.failure": "a row of its memory could not be remapped: the GPU is to be replaced",
}
HELD_DOWN: Final = {0x08: "a slow-down by its hardware", 0x40: "heat (slow-down by its hardware)", 0x80: "the power supply (power brake)"}
"""Bits of what holds a clock down while nothing runs; limits of software, and an idle clock, are no fault."""
XIDS: Final[Mapping[int, str]] = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "failure to retire a page or remap a row",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "time-out of its system processor",
    120: "error of its system processor",
    140: "unrecovered ECC error",
    143: "initialisation error",
    154: "recovery action required",
}
"""Those that tell of the GPU and not of a program that ran on it, such as 13, 31, 43."""
_XID: Final = re.compile(
    r"^\[\s*(\d{1,12}\.\d{1,9})\] .*NVRM: Xid \(PCI:([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?\): (\d{1,4})\b",
    re.MULTILINE,
)
_UNKNOWN_FIELD: Final = re.compile(r'Field "([a-z_.]+)" is not a valid field')


def query(fields: Sequence[str]) -> tuple[str, ...]:
    """Pure: the question."""
    return ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")


def parse_health(answer: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Pure: a GPU per line, by the names of `fields`; a line that is none is passed over."""
    found = []
    for line in answer.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == len(fields) and words[0].startswith("GPU-"):
            found.append(dict(zip(fields, words, strict=True)))
    return found


def faults_of(gpu: Mapping[str, str]) -> Iterable[str]:
    """Pure: what is wrong with one of `parse_health`, in words. What the driver does not tell (`[N/A]`) is no fault."""
    errors = digits(gpu.get(ECC, "")) or 0
    if errors:
        yield f"{errors} uncorrected ECC error{'s' * (errors > 1)} since the driver was loaded"
    for field, words in YES.items():
        if gpu.get(field, "").lower() in ("yes", "1"):
            yield words
    word = gpu.get(THROTTLE, "")
    bits = int(word, 16) if re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", word) else 0
    for bit, what in HELD_DOWN.items():
        if bits & bit:
            yield f"its clock is held down by {what}, before anything runs"


def xids(kernel_log: str, uptime_s: float) -> dict[Bus, list[int]]:
    """Pure: the Xids of hardware of the last day, each once. `kernel_log`: of dmesg, with seconds since boot."""
    found: dict[Bus, list[int]] = {}
    for seconds, bus, number in _XID.findall(kernel_log):
        xid = int(number)
        if xid in XIDS and uptime_s - float(seconds) < XID_RECENT_S:
            of_bus = found.setdefault(bus_key(f"{bus}.0"), [])
            if xid not in of_bus:
                of_bus.append(xid)
    return found


def judge(uuids: Sequence[str], gpus: Iterable[Mapping[str, str]], by_bus: Mapping[Bus, Sequence[int]]) -> tuple[GpuFault, ...]:
    """Pure: what is wrong with ours, in their order. One that is not listed any more is lost; a MIG instance is listed nowhere."""
    known = {gpu["uuid"]: gpu for gpu in gpus}
    found = []
    for uuid in uuids:
        gpu = known.get(uuid)
        if gpu is None:
            if known and uuid.startswith("GPU-"):
                found.append(GpuFault(uuid, f"{uuid} is not listed by nvidia-smi any more: it may be lost (dmesg)"))
            continue
        seen = by_bus.get(bus_key(gpu["pci.bus_id"]), ()) if by_bus else ()
        words = [*faults_of(gpu), *(f"Xid {xid} in the kernel's log of the last day ({XIDS[xid]})" for xid in seen)]
        found += [GpuFault(uuid, f"{uuid}: {what}") for what in words]
    return tuple(found)


def look(uuids: Sequence[str]) -> tuple[GpuFault, ...]:
    """Ask driver and kernel. What cannot be known is said nowhere but in the node's log: it harms nobody."""
    if not uuids:
        return ()
    try:
        gpus = _ask()
        return judge(uuids, gpus, _kernel_xids())
    except (SlipwayError, ValueError) as error:
        logger.debug("the health of the GPUs is not known: %s", error)
        return ()


def _ask() -> list[dict[str, str]]:
    """By the names that this driver has for the fields, without those that it does not know. Raises SlipwayError."""
    asked = {field: field for field in FIELDS}
    while True:
        result = run(query(tuple(asked.values())), timeout_s=GPU_USE_S)
        found = _UNKNOWN_FIELD.search(result.stdout + result.stderr) if result.returncode else None
        field = next((field for field in FIELDS[2:] if found is not None and asked.get(field) == found[1]), None)
        if field is None:
            break
        if asked.pop(field) == THROTTLE:
            asked[field] = THROTTLE_SINCE_535
    gpus = parse_health(result.stdout, tuple(asked))
    if result.returncode and not gpus:
        raise SlipwayError(describe(result))
    return gpus


def _kernel_xids() -> dict[Bus, list[int]]:
    """None where the kernel's log may not be read here."""
    try:
        result = run(("dmesg",), timeout_s=GPU_USE_S)
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except (SlipwayError, OSError) as error:
        logger.debug("the kernel's log is not read for Xids: %s", error)
        return {}
    if result.returncode:
        logger.debug("the kernel's log is not read for Xids: %s", describe(result))
        return {}
    return xids(result.stdout, uptime_s)
