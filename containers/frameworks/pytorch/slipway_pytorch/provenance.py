"""What this rank ran with: collected on every rank, so that differences show."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy
import torch
import torch.distributed as dist

SHOWN = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "GLOO_SOCKET_IFNAME")
SHOWN_PREFIX = "NCCL_"


def collect(device: torch.device, loader_processes: int) -> dict[str, Any]:
    """Versions, hardware and settings, JSON-able. What does not exist here is None."""
    cuda = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if cuda else None
    return {
        "torch_version": torch.__version__,
        "torch_git_version": torch.version.git_version,
        "cuda_version": torch.version.cuda,
        "cudnn_version": torch.backends.cudnn.version() if cuda else None,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "backend": dist.get_backend(),
        "python": platform.python_version(),
        "numpy_version": numpy.__version__,
        "cpu_model": _cpu_model(),
        "cpu_cores": sorted(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "loader_processes": loader_processes,
        "gpu_model": properties.name if properties else None,
        "gpu_memory_bytes": properties.total_memory if properties else None,
        "gpu_uuid": f"GPU-{properties.uuid}" if properties and hasattr(properties, "uuid") else None,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
        "environment": {key: value for key, value in sorted(os.environ.items()) if key in SHOWN or key.startswith(SHOWN_PREFIX)},
    }


def _cpu_model() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), None)
    except OSError:
        return None
