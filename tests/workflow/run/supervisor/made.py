"""A running attempt as it is before any node program comes up, on this machine; nothing is launched."""

from cluster.types import Allocation, Node
from tests.workflow.run.cells import cell, made_site
from workflow.run.link.event_loop import Loop
from workflow.run.record.resume import EarlierAttempt
from workflow.run.record.step_clock import Clock
from workflow.run.storage.results import PreparedRun
from workflow.run.supervisor.deadline import TimeLimit
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.run_scope import RunScope
from workflow.run.supervisor.running_attempt import RunningAttempt
from workflow.study.cell import RunLimits

NODES = tuple(Node(name=f"n{index}", hostname="here", address=f"127.0.0.{index + 1}") for index in range(2))
ALLOCATION = Allocation(scheduler="local", job_id="1", nodes=NODES, device="cpu", exclusive=True)
EARLIER = EarlierAttempt(attempt=1, step=5, bytes=10, blake3="0" * 64, used_s=1.0, performance=None, training=None)
RUN = PreparedRun(
    study="study",
    run_id="cell-r1",
    cell=cell(nodes=2),
    dataset_build="",
    repeat=1,
    site=made_site(deadline_margin_s=1.0),
    limits=RunLimits(walltime_s=1000.0),
    allocation=ALLOCATION,
    attempt=2,
    token="0123456789abcdef",
    tag="cell-r1-a2-x",
    result_number=1,
    run_dir="/nowhere/runs/cell-r1",
    resumable=(EARLIER,),
    done=None,
)


def running_attempt(run: PreparedRun = RUN) -> RunningAttempt:
    """Its nodes listen on this machine; `nodes.close()` at the end."""
    scope, clock = RunScope(Loop()), Clock(0.0)
    limit = TimeLimit(scope, run)
    limit.begin()
    return RunningAttempt(scope, clock, limit, run.allocation, NodeLocks(scope, (), 0), run)
