"""`python -m tests.workflow.run.supervised JSON ARGUMENTS`: the supervisor as a program, with other limits, in a job that ends.

JSON: {"limits": fields of AttemptLimits, "job_s": how long after its allocation was read the job ends, or null}. The scheduler
is this machine, with an end.
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
from workflow.run.supervisor.supervisor import main
from workflow.run.supervisor.time_limits import AttemptLimits


class EndingJob:
    """The scheduler `local`, whose jobs end."""

    def __init__(self, job_s: float) -> None:
        self._job_s = job_s

    def __getattr__(self, name: str) -> Any:
        return getattr(local, name)

    def allocate(self, request: AllocationRequest, environ: Mapping[str, str], supervisor: int) -> Allocation:
        return replace(local.allocate(request, environ, supervisor), deadline=time.time() + self._job_s)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given["job_s"] is not None:
        sys.modules[SCHEDULERS[LOCAL]] = cast("ModuleType", EndingJob(given["job_s"]))
    sys.exit(main(sys.argv[2:], AttemptLimits(**given["limits"])))
