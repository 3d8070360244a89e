"""NVML's counter of energy, asked of a library that stands for the driver's: no GPU is needed."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.gpus import energy
from cluster.gpus.energy import EnergyCounters
from tests.cluster.smi import install
from workflow.run.node.child import Watcher, watching_argv
from workflow.run.record.machine_load import parse_watched

ONE, TWO = (f"GPU-1c3b7a5e-9d21-4f60-8e07-5a1f0c27d9e{number}" for number in (1, 2))  # those of captured/nvidia-smi/load.json
SOURCE = f"""
#include <string.h>
static unsigned long long used = 1500;
static int one, two;
int nvmlInit_v2(void) {{ return INIT; }}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {{
    if (!strcmp(uuid, "{ONE}")) {{ *device = &one; return 0; }}
    if (!strcmp(uuid, "{TWO}")) {{ *device = &two; return 0; }}
    return 6; /* NVML_ERROR_NOT_FOUND */
}}
#ifdef COUNTS
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy) {{
    if (device != &one) return 3; /* NVML_ERROR_NOT_SUPPORTED */
    *energy = used += 250 + (1ULL << 33);
    return 0;
}}
#endif
"""


def built(folder: Path, *flags: str) -> Path:
    (folder / "nvml.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", folder / energy.LIBRARY, folder / "nvml.c"], check=True)
    return folder / energy.LIBRARY


def library(folder: Path, *flags: str) -> Any:
    return ctypes.CDLL(str(built(folder, *flags)))


@pytest.mark.processes
def test_the_counter_is_read_in_joules_beyond_32_bits(tmp_path: Path) -> None:
    counters = EnergyCounters(library(tmp_path, "-DINIT=0", "-DCOUNTS"))
    first, second = counters.joules(ONE), counters.joules(ONE)
    assert first == pytest.approx((1500 + 250 + 2**33) / 1000)
    assert second == pytest.approx(first + (250 + 2**33) / 1000)
    assert counters.joules(TWO) is None, "a card without a counter"
    assert counters.joules("GPU-of-another-machine") is None
    assert counters.joules(f"MIG-{ONE}") is None
    assert counters.joules("GPU-\u0665") is None
    assert counters.joules(ONE) is not None, "what one card cannot do is not held against another"


@pytest.mark.processes
@pytest.mark.parametrize("flags", [("-DINIT=9", "-DCOUNTS"), ("-DINIT=0",)], ids=["no driver", "an old driver"])
def test_a_library_that_says_no_is_no_error(tmp_path: Path, flags: tuple[str, ...]) -> None:
    counters = EnergyCounters(library(tmp_path, *flags))
    assert [counters.joules(ONE) for _ in range(2)] == [None, None]


def test_without_a_library_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "LIBRARY", "libnothing-of-the-kind.so.1")
    assert EnergyCounters().joules(ONE) is None


@pytest.mark.processes
def test_the_watcher_of_gpus_tells_their_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: the program, nvidia-smi and the library that it finds by its name, and the reader of its lines."""
    built(tmp_path, "-DINIT=0", "-DCOUNTS")
    install(tmp_path, ["load", "compute-apps"])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    watcher = Watcher([watching_argv(sys.executable, {0}, "", [], (ONE, TWO))])
    try:
        deadline = time.monotonic() + 60
        while not watcher.lines().endswith(b"\n") and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        watcher.close()
    watched = parse_watched([b'{"schema": "slipway.load/1", "cores": 1}\n', *watcher.lines().splitlines(keepends=True)])
    assert watched is not None
    counters = [{gpu.uuid: gpu.joules for gpu in line.gpus or ()} for line in watched.lines]
    assert counters[0] == {ONE: pytest.approx((1500 + 250 + 2**33) / 1000), TWO: None}
