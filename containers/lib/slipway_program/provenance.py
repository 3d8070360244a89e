"""Collect what a rank reports with the start of its run: versions, cores, variables."""

import os
import platform
from typing import Optional

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
