"""GPUs as nvidia-smi shows them: how many, which driver, MIG, persistence, who else uses them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Final

from base.command import last_lines, run
from base.errors import SlipwayError
from base.finding import Finding
from base.units import counted
from cluster.limits import GPU_USE_S

SUBJECT: Final = "gpus"
QUERY: Final = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,mig.mode.current,persistence_mode,memory.used",
    "--format=csv,noheader,nounits",
)
MUCH_MIB: Final = 600
"""What a driver and a display may hold; more is somebody's program."""

Line = Sequence[str]


def parse(text: str) -> list[list[str]]:
    """One line per GPU: name, driver, MIG mode, persistence mode, MiB used."""
    return [words for words in ([word.strip() for word in line.split(",")] for line in text.splitlines()) if len(words) == 5]


def judge(lines: Sequence[Line], device: str, gpus_per_node: int | None, on_node: bool) -> tuple[Finding, ...]:
    """Pure. `on_node`: this machine is one on which runs are started."""
    if not lines:
        return _judge_none(device, gpus_per_node, on_node)
    names = {line[0]: sum(1 for other in lines if other[0] == line[0]) for line in lines}
    said = ", ".join(f"{count} x {name}" for name, count in names.items())
    found = [Finding(SUBJECT, "ok", f"{said}; driver {', '.join(dict.fromkeys(line[1] for line in lines))}")]
    if on_node and device == "cuda" and gpus_per_node is not None and len(lines) < gpus_per_node:
        text = f"{counted(len(lines), 'GPU')} here, the site file says gpus_per_node: {gpus_per_node}"
        found.append(Finding(SUBJECT, "note", text, "inside a job only the granted ones show; otherwise correct the site file"))
    if device == "cpu":
        found.append(Finding(SUBJECT, "note", "the site file says device: cpu: the GPUs are not used", "device: cuda in the site file"))
    if any(line[2] == "Enabled" for line in lines):
        text = "MIG is on: a GPU here is a slice of one; speeds of slices do not compare with whole GPUs"
        found.append(
            Finding(
                SUBJECT,
                "warning",
                text,
                "another queue or constraint, or MIG off; instances are granted by UUID only: `slipway gpus --explain`",
            )
        )
    if any(line[3] == "Disabled" for line in lines):
        text = "persistence mode is off: the driver is loaded anew for each run, some seconds each"
        found.append(Finding(SUBJECT, "note", text, "ask for nvidia-persistenced"))
    busy = sum(1 for line in lines if line[4].isdigit() and int(line[4]) > MUCH_MIB)
    if busy and on_node:
        text = f"{busy} of {counted(len(lines), 'GPU')} hold memory of another program now"
        found.append(
            Finding(SUBJECT, "warning", text, "`nvidia-smi` shows whose; foreign_gpu: refuse in the site file keeps off such GPUs")
        )
    return tuple(found)


def check_gpus(device: str, gpus_per_node: int | None, on_node: bool) -> tuple[Finding, ...]:
    """Ask nvidia-smi."""
    if shutil.which(QUERY[0]) is None:
        return judge((), device, gpus_per_node, on_node)
    try:
        result = run(QUERY, timeout_s=GPU_USE_S)
    except SlipwayError as error:
        return (Finding(SUBJECT, "error" if on_node else "warning", str(error), "a GPU or its driver hangs: another node; dmesg, Xid"),)
    if result.returncode:
        text = f"nvidia-smi ends with {result.returncode}: {last_lines(result.stdout + result.stderr, 1)}"
        return (
            Finding(SUBJECT, "error" if on_node and device == "cuda" else "warning", text, "the driver is not loaded, or does not fit"),
        )
    return judge(parse(result.stdout), device, gpus_per_node, on_node)


def _judge_none(device: str, gpus_per_node: int | None, on_node: bool) -> tuple[Finding, ...]:
    if not on_node:
        return (Finding(SUBJECT, "ok", "none on this machine, as usual for a login node"),)
    if device == "cpu":
        return (Finding(SUBJECT, "ok", "none; the site file says device: cpu"),)
    text = f"no GPU shows here, and the site file says device: cuda{f', gpus_per_node: {gpus_per_node}' if gpus_per_node else ''}"
    return (Finding(SUBJECT, "error", text, "ask for GPUs in this allocation (--gres=gpu:N), or device: cpu in the site file"),)
