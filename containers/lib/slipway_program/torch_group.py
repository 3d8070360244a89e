"""How the ranks of a program on PyTorch find each other. Imported where PyTorch is."""

import os
import socket
from typing import Any, Dict

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def join_gloo() -> None:
    """Join the ranks of this run, by gloo between CPUs."""
    if os.environ["MASTER_ADDR"] in LOOPBACK:  # otherwise gloo looks up its own host name, which need not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", **meeting())


def meeting() -> Dict[str, Any]:
    """Where the ranks find each other, as init_process_group takes it: a store of rank 0 on the run's own address.

    PyTorch's own would listen on all addresses of the node, and it knows no password: whoever can connect reads and changes what the ranks
    tell each other. Under torchrun the store is torchrun's.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return {}
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {"store": open_store(rank), "rank": rank, "world_size": world_size}


def open_store(rank: int) -> dist.Store:
    """On MASTER_ADDR and MASTER_PORT."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank:
        return dist.TCPStore(host, port, is_master=False, timeout=default_pg_timeout)
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    return dist.TCPStore(host, port, is_master=True, timeout=default_pg_timeout, master_listen_fd=listener.detach())
