"""What this rank ran with: collected on every rank, so that differences show."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from slipway_program.provenance import common_provenance


def collect(device: torch.device, loader_processes: int) -> dict[str, Any]:
    """Versions, hardware and settings, JSON-able. What does not exist here is None."""
    cuda = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if cuda else None
    return {
        **common_provenance(),
        "torch_version": torch.__version__,
        "torch_git_version": torch.version.git_version,
        "cuda_version": torch.version.cuda,
        "cudnn_version": torch.backends.cudnn.version() if cuda else None,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "backend": dist.get_backend(),
        "threads": torch.get_num_threads(),
        "loader_processes": loader_processes,
        "gpu_model": properties.name if properties else None,
        "gpu_memory_bytes": properties.total_memory if properties else None,
        "gpu_uuid": f"GPU-{properties.uuid}" if properties and hasattr(properties, "uuid") else None,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
    }
