"""Events: one JSON object per line, flushed as it happens; every line is also the sign that this rank is alive."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any, Optional

import numpy
import slipway_reader

from .parameters import Facts

SHOWN = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "GLOO_SOCKET_IFNAME", "XLA_FLAGS", "TF_ENABLE_ONEDNN_OPTS")
SHOWN_PREFIX = "NCCL_"


def common_provenance() -> Facts:
    """Collect versions, cores and variables, JSON-able. What does not exist here is None."""
    return {
        "python": platform.python_version(),
        "numpy_version": numpy.__version__,
        "pixels_copied_by": slipway_reader.copies_by(),
        "cpu_model": _cpu_model(),
        "cpu_cores": sorted(os.sched_getaffinity(0)),
        "environment": {key: value for key, value in sorted(os.environ.items()) if key in SHOWN or key.startswith(SHOWN_PREFIX)},
    }


def _cpu_model() -> Optional[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), None)
    except OSError:
        return None


class Events:
    """The event file of one rank. A line costs some 15 microseconds."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def emit(self, event: str, **fields: Any) -> None:
        """Write one line. Numbers must be finite: a file with NaN is no JSON."""
        line = dict(event=event, time=time.time(), monotonic_ns=int(time.monotonic() * 1e9), **fields)
        self._file.write(json.dumps(line, allow_nan=False) + "\n")

    def phase(self, phase: str) -> None:
        self.emit("phase", phase=phase)

    def close(self) -> None:
        self._file.close()
