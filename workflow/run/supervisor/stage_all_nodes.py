"""Stage one dataset on all nodes of the allocation at once.

`python -m workflow.run.supervisor.stage_all_nodes --results DIR --dataset NAME --output FILE`, inside the batch job of a study, before its
runs: runs of few nodes side by side would each read storage. What a node cannot stage is logged, and does not stop the others; a run on
that node tries again. FILE says that it was done: {"dataset", "nodes", "storage_bytes"}, the nodes by name, null or why one has nothing.
"""

import argparse
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import assert_never

from msgspec import Struct

from base import handshake, humanize, jsonfile, logs, publish
from base.errors import AllocationError, Cancelled, ConfigError, SlipwayError, error_named
from cluster import addresses, grants, schedulers
from cluster.types import Allocation
from workflow.run.link import commands, event_loop, reports
from workflow.run.plan import TAG, allocation_request, node_argv
from workflow.run.record.outcome import Ending
from workflow.run.storage.description import PublishedDataset, build_of, describe_dataset
from workflow.run.supervisor import node_locks, run_scope, step_limits
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.run.supervisor.staging import Staging
from workflow.study.cell import datasets_of
from workflow.study.publishing import read_resolved
from workflow.study.site import Site, storage_limit

logger = logging.getLogger(__name__)


class PreparedStaging(Struct, frozen=True, kw_only=True):
    """The dataset, and the nodes that stage it: the whole allocation, no GPU of which is needed."""

    site: Site
    allocation: Allocation
    dataset: PublishedDataset


def prepare(results: str, dataset: str, pid: int, environ: Mapping[str, str]) -> PreparedStaging:
    """Find the dataset and take the allocation. Runs in a child. Raises SlipwayError."""
    study = read_resolved(Path(results))
    site, cells = study.site, study.cells
    logs.private_umask(site.shared == "group")
    found = [cell for cell in cells if cell.has_dataset and dataset in (cell.dataset, build_of(study, cell))]
    if not found:
        known = ", ".join(datasets_of(cells)) or "none"
        raise ConfigError(f"--dataset {dataset!r}: the study {study.study!r} has no such dataset; it has {known}")
    request = allocation_request(found[0], cells, site)
    nodes = request.largest_nodes if site.scheduler == "local" else 1
    request = dataclasses.replace(request, nodes=nodes, gpus_per_node=1, device="cpu", gres=0, cpus_per_node=None)
    allocation = dataclasses.replace(schedulers.get_scheduler(site.scheduler).allocate(request, environ, pid), own_job=False)
    published, _ = describe_dataset(site.storage, found[0], build_of(study, found[0]))
    return PreparedStaging(site=site, allocation=allocation, dataset=published)


class StageAllNodes:
    """The staging of one dataset on all nodes."""

    def __init__(self, results: str, dataset: str) -> None:
        self.scope = run_scope.RunScope(event_loop.Loop())
        self.arguments = (results, dataset, os.getpid(), dict(os.environ))
        self.tag = f"stage-{dataset}-{handshake.new_token().hex()[:8]}"
        self.began = time.monotonic()
        self.staging: Staging | None = None
        self.nodes: Nodes | None = None
        self.held = contextlib.ExitStack()
        """What is given back when everything that we started has ended."""

    def run(self, output: str) -> None:
        """Run the staging, and write the file `output`. Raises SlipwayError."""
        loop, orphaned = self.scope.loop, partial(self._cancel, "the process that started it has ended")
        with self.held, run_scope.supervising(loop, lambda number: self._cancel(f"got {signal.Signals(number).name}"), orphaned):
            try:
                self.scope.call("publish", write, output, self._work())
            except run_scope.RunEnded as ended:
                raise (ended.ending.error or AllocationError)(ended.ending.reason or ended.ending.status) from ended

    def _work(self) -> dict[str, object]:
        try:
            work: PreparedStaging = self.scope.call("prepare", prepare, *self.arguments, kind=PreparedStaging)
            self._stage(work)
            return self._results(work)
        finally:
            if self.nodes is not None:
                self.nodes.send_all(commands.Stop())
                self.nodes.send_all(commands.Release())
                self.nodes.end(step_limits.NODES_STOP_S)

    def _cancel(self, why: str) -> None:
        reason = f"staging {self.arguments[1]} on all nodes: {why}; unfinished copies are kept"
        self.scope.end(Ending(status="cancelled", reason=reason, error=Cancelled))

    def _stage(self, work: PreparedStaging) -> None:
        site, allocation = work.site, work.allocation
        scheduler = schedulers.get_scheduler(allocation.scheduler)
        locks = node_locks.NodeLocks(self.scope, *schedulers.run_locks(allocation, len(allocation.nodes)))
        self.held.callback(locks.give)
        locks.take()
        locks.sign(f"{self.tag} (process {os.getpid()})")
        listen = addresses.listening_address((node.address for node in allocation.nodes), site.network_interface)
        self.nodes = Nodes(self.scope.loop, allocation, listen, self._heard, self._lost)
        argv = node_argv(sys.executable, self.nodes.address, site.setup, allocation.device, site.network_interface)
        environ = {**scheduler.launch_environ(os.environ), TAG: self.tag}
        self.nodes.launch(scheduler.launches(allocation, argv), environ, locks.descriptors)
        self.staging = Staging(self.scope, self.nodes)
        self.staging.wait_for_nodes()
        ready = [node.last(reports.Ready) for node in self.nodes.all]
        found = [message.grant for message in ready if message is not None and message.grant is not None]
        if len(found) == len(ready):
            allocation = grants.complete(allocation, found, 1)[0]
            self.nodes.set_granted(allocation.nodes)
        run_dir = str(Path(self.arguments[0], "staged", self.tag))  # no run's: it tells whose the work directory is
        plan = commands.staging_plan(site, allocation, self.tag, run_dir, work.dataset.path)
        self.staging.look(plan, lambda node: str(schedulers.node_cache(allocation.scheduler, site.cache.path, node)))
        self.staging.run(plan, storage_limit(site).readers)
        self.staging.end()

    def _heard(self, node: NodeHandle, message: reports.Report) -> None:
        if isinstance(message, reports.StagingReport):
            if self.staging is not None:
                self.staging.heard(node, message)
        elif isinstance(message, reports.Signalled):
            self._cancel(f"the node program of {node.node.name} got {signal.Signals(message.number).name}")
        elif isinstance(message, reports.Failed):
            logger.error("%s on %s: %s", message.during, node.node.name, message.message)
        elif not isinstance(message, reports.TrainingReport | reports.AwaitedReport):
            assert_never(message)

    def _lost(self, node: NodeHandle, why: str) -> None:
        logger.error("the node program of %s is gone: %s", node.node.name, why)
        if not node.has_reported(reports.Failed):
            node.note(reports.Failed(during="stage", error="NodeLost", message=why))

    def _results(self, work: PreparedStaging) -> dict[str, object]:
        """Return the content of FILE. Raises what stopped the first node, if no node has the dataset."""
        assert self.nodes is not None
        told = {node.node.name: node.last(reports.Staged) for node in self.nodes.all}
        found = {name: staged.dataset for name, staged in told.items() if staged is not None and staged.dataset is not None}
        failed = {node.node.name: node.answer(reports.Failed) for node in self.nodes.all if node.node.name not in found}
        if not found:
            name, problem = next(iter(failed.items()))
            raise error_named(problem.error)(f"staging {work.dataset.name} on {name}: {problem.message}")
        read = sum(copy.storage_bytes for copy in found.values())
        logger.info(
            "%s is on %d of %d nodes after %s; %s came from storage",
            work.dataset.name,
            len(found),
            len(told),
            humanize.format_duration(time.monotonic() - self.began),
            humanize.format_size(read),
        )
        nodes = {name: failed[name].message if name in failed else None for name in told}
        return {"dataset": work.dataset.name, "nodes": nodes, "storage_bytes": read}


def write(path: str, content: dict[str, object]) -> None:
    """Write the file that says that it was done. Runs in a child."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    publish.publish(Path(path), jsonfile.canonical_json(content) + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Stage the dataset, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m workflow.run.supervisor.stage_all_nodes", description="Stage a dataset on all nodes of this allocation."
    )
    parser.add_argument("--results", required=True, metavar="DIR", help="<storage>/results/<study>, where study.json lies")
    parser.add_argument("--dataset", required=True, metavar="NAME", help="the study's name of it, or <name>-<spec12> as it is built")
    parser.add_argument("--output", required=True, metavar="FILE")
    arguments = parser.parse_args(argv)
    logs.private_umask()
    logs.configure("stage")
    staging = StageAllNodes(os.path.abspath(arguments.results), arguments.dataset)
    try:
        staging.run(os.path.abspath(arguments.output))
    except SlipwayError as error:
        logger.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
