"""How the processes of a run find each other: the variables PADDLE_*, gloo between CPUs."""

from __future__ import annotations

import os

from paddle import distributed

LOOPBACK = ("127.0.0.1", "localhost")


def join_ranks() -> int:
    """Join the ranks of this run; how many there are."""
    world_size, host = int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
    if world_size > 1:
        if ":" in host:
            raise RuntimeError(
                f"the head node is {host}, and Paddle finds its ranks by IPv4 addresses only: use a network_interface with one"
            )
        if host in LOOPBACK:  # else gloo would look up the node's own name, which need not resolve
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_parallel_env()
    return world_size
