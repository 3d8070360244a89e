"""Training with Horovod: whole copies, whose gradients it averages. All else the ranks say by PyTorch's process group."""

from __future__ import annotations

import os
import threading

import horovod.torch as hvd
import torch
import torch.distributed as dist
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
from slipway_program.torch_group import LOOPBACK

from .network import Network


def averaging(optimizer: torch.optim.Optimizer, net: Network) -> torch.optim.Optimizer:
    """Return an optimizer that waits for the averages of all ranks before it updates."""
    _join()
    wrapped: torch.optim.Optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    return wrapped


def leave() -> None:
    """Leave, all ranks together, after the last step."""
    hvd.shutdown()


def _join() -> None:
    """Join as horovodrun would: by its variables, and a rendezvous, which runs in rank 0 on the run's own address. The others are told its
    port.
    """
    rank, each = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    node, world_size = os.environ["NODE_RANK"], int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"]
    port = torch.tensor(_serve(address) if rank == 0 else 0)
    dist.broadcast(port, 0)
    interface = "lo" if address in LOOPBACK else os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ.update(
        HOROVOD_RANK=str(rank),
        HOROVOD_SIZE=str(world_size),
        HOROVOD_LOCAL_RANK=os.environ["LOCAL_RANK"],
        HOROVOD_LOCAL_SIZE=str(each),
        HOROVOD_CROSS_RANK=node,
        HOROVOD_CROSS_SIZE=str(world_size // each),
        HOROVOD_HOSTNAME=f"node-{node}",  # a name for those that are together: two nodes may be parts of one machine
        HOROVOD_GLOO_RENDEZVOUS_ADDR=address,
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(int(port)),
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        **({} if interface is None else {"HOROVOD_GLOO_IFACE": interface}),
    )
    hvd.init()


class _Rendezvous(RendezvousHTTPServer):
    server_address: tuple[str, int]

    def server_bind(self) -> None:
        """Bind without looking up the name of the address, which need not resolve."""
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.socket.getsockname()


def _serve(address: str) -> int:
    """Return the port of a rendezvous, which lives as long as this process."""
    server = _Rendezvous((address, 0), RendezvousHandler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_port)
