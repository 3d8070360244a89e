"""How the processes of a run find each other, and the mesh over all of them."""

from __future__ import annotations

import os
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def join_mesh() -> Mesh:
    """Join the ranks of this run, gloo between CPUs. One device of each, in the order of the ranks.

    JAX's coordinator, which runs in rank 0, listens on the run's own address: on all addresses of the node, as it does by itself, whoever
    can connect could disturb the run.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.config.update("jax_platforms", "cpu")
    if world_size > 1:
        host = os.environ["MASTER_ADDR"]
        address = f"[{host}]:{os.environ['MASTER_PORT']}" if ":" in host else f"{host}:{os.environ['MASTER_PORT']}"
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        _choose_interface("lo" if host in LOOPBACK else os.environ.get("GLOO_SOCKET_IFNAME"))
        jax.distributed.initialize(address, world_size, rank, coordinator_bind_address=address)
    return Mesh(np.array(sorted(jax.devices(), key=lambda device: device.process_index)), ("ranks",))


def _choose_interface(interface: str | None) -> None:
    """Gloo would look up the node's own name, which need not resolve, or resolves to the loopback; JAX has no setting for it."""
    if interface is not None:
        from jax._src.lib import _jax

        _jax.make_gloo_tcp_collectives = partial(_jax.make_gloo_tcp_collectives, interface=interface)
