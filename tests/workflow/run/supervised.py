"""`python -m tests.workflow.run.supervised JSON ARGUMENTS`: the supervisor as a program, with other limits, in another job.

JSON: {"limits": fields of AttemptLimits, "job_s": how long after its allocation was read the job ends, or null, "addresses": those of its
nodes, which a network connects then, or null}. The scheduler is this machine otherwise.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

from cluster.schedulers import LOCAL, SCHEDULERS, local
from cluster.types import Allocation, AllocationRequest
from workflow.run.supervisor.step_limits import AttemptLimits
from workflow.run.supervisor.supervisor import main


class OtherJob:
    """The scheduler `local`, whose jobs end, or whose nodes have addresses of their own."""

    def __init__(self, job_s: float | None, addresses: list[str] | None) -> None:
        self._job_s, self._addresses = job_s, addresses

    def __getattr__(self, name: str) -> Any:
        return getattr(local, name)

    def allocate(self, request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:
        found = local.allocate(request, environ, supervisor)
        if self._addresses is not None:
            found = replace(found, nodes=tuple(replace(node, address=at) for node, at in zip(found.nodes, self._addresses, strict=True)))
        return found if self._job_s is None else replace(found, deadline=time.time() + self._job_s)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.modules[SCHEDULERS[LOCAL]] = cast("ModuleType", OtherJob(given["job_s"], given["addresses"]))
    sys.exit(main(sys.argv[2:], AttemptLimits(**given["limits"])))
