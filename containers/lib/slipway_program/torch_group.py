"""How the ranks of a program on PyTorch find each other, and what each of them computes on. Imported where PyTorch is."""

import os
import socket
from typing import Dict, Union

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from .parameters import Cell, Facts

LOOPBACK = ("127.0.0.1", "localhost", "::1")


CUDA_ONLY = ("tf32", "fp16")


def join_group(cell: Cell) -> torch.device:
    """Join the ranks of this run (gloo between CPUs, NCCL between GPUs); the device of this rank, set up for the cell's precision."""
    if cell["device"] == "cpu":
        if cell["precision"] in CUDA_ONLY:
            raise ValueError("precision %s needs a GPU, and the device of this run is the CPU" % cell["precision"])
        if os.environ["MASTER_ADDR"] in LOOPBACK:  # otherwise gloo looks up its own host name, which need not resolve
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", **meeting())
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    tf32 = cell["precision"] == "tf32"  # said in either case: images differ in their default
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    algorithm = cell.get("conv_algorithm", "auto")
    if algorithm != "auto":
        torch.backends.cudnn.benchmark = algorithm == "measured"
        torch.backends.cudnn.deterministic = algorithm == "deterministic"
    dist.init_process_group("nccl", device_id=device, **meeting())
    return device


def leave_group(device: torch.device) -> None:
    """Leave the group: the last collective is done. NCCL's communicators are given back; a gloo group ends with the process.

    Not destroyed, because its destructor can hang (torch 2.13, seen here once in some ten runs): it takes a lock, holding the GIL, while a
    gloo thread holds that lock and waits for the GIL to free the tensor of the last collective.
    """
    if device.type == "cuda":
        dist.destroy_process_group()


def provenance_of(device: torch.device) -> Facts:
    """Collect versions, hardware and settings, JSON-able. What does not exist here is None."""
    cuda = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if cuda else None
    return {
        "torch_version": torch.__version__,
        "torch_git_version": torch.version.git_version,
        "cuda_version": torch.version.cuda,
        "cudnn_version": torch.backends.cudnn.version() if cuda else None,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "backend": dist.get_backend(),
        "gpu_model": properties.name if properties else None,
        "gpu_memory_bytes": properties.total_memory if properties else None,
        "gpu_uuid": "GPU-%s" % properties.uuid if properties and hasattr(properties, "uuid") else None,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
    }


def meeting() -> Dict[str, Union[dist.Store, int]]:
    """Return where the ranks find each other, as init_process_group takes it: a store of rank 0 on the run's own address.

    PyTorch's own would listen on all addresses of the node, and it knows no password: whoever can connect reads and changes what the ranks
    tell each other. Under torchrun the store is torchrun's.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return {}
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {"store": open_store(rank), "rank": rank, "world_size": world_size}


def open_store(rank: int) -> dist.Store:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank:
        return dist.TCPStore(host, port, is_master=False, timeout=default_pg_timeout)
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    return dist.TCPStore(host, port, is_master=True, timeout=default_pg_timeout, master_listen_fd=listener.detach())
