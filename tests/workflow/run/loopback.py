"""The supervisor with a local scheduler whose nodes have addresses of their own, so that there is a network to test between them.

`SLIPWAY_TEST_ADDRESSES`: one address per node, the loopback's from 127.0.0.2 on unless given.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping

from cluster.schedulers import local
from cluster.types import Allocation, AllocationRequest
from workflow.run.supervisor.supervisor import main

granted = local.allocate


def allocate(request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:
    allocation = granted(request, environ, supervisor)
    given = os.environ.get("SLIPWAY_TEST_ADDRESSES", "").split()
    addresses = given or [f"127.0.0.{index + 2}" for index in range(len(allocation.nodes))]
    nodes = [dataclasses.replace(node, address=address) for node, address in zip(allocation.nodes, addresses, strict=True)]
    return dataclasses.replace(allocation, nodes=tuple(nodes))


if __name__ == "__main__":
    local.allocate = allocate
    sys.exit(main())
