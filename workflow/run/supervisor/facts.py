"""Collect what a record has besides ending and events: who ran where, when, with what, by which version of Slipway."""

import contextlib
import platform
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from base import VERSION, errors
from containers.engines import in_container
from workflow.run.link import event_loop, reports
from workflow.run.plan import at_site, threads_per_rank
from workflow.run.record import model, step_clock
from workflow.run.record.run_record import Granted, RunFacts, RunTimes
from workflow.run.storage.description import Work
from workflow.run.supervisor.nodes import NodeHandle
from workflow.run.supervisor.running_attempt import GitState, RunningAttempt
from workflow.study.site import Site

OF_MACHINE: Final = ("cpu_model", "machine_cores", "memory_bytes", "network", "driver_version")


def times_of(clock: step_clock.Clock) -> RunTimes:
    """Return `start`, `end`, `run_s` and `steps_s` as of now."""
    steps = clock.steps_s()
    return RunTimes(
        start=clock.start.isoformat(timespec="milliseconds"),
        end=clock.end().isoformat(timespec="milliseconds"),
        run_s=step_clock.run_s(steps),
        steps_s=model.Steps(**steps),
    )


def run_facts(attempt: RunningAttempt, work: Work) -> RunFacts:
    """Collect the facts of the attempt."""
    run, allocation, nodes, dataset = attempt.run, attempt.allocation, attempt.nodes.all, work.dataset
    head = nodes[0].last(reports.Ready)
    found_dataset = None
    if dataset is not None:
        found_dataset = replace(msgspec.convert(dataset, model.Dataset, from_attributes=True), train_samples=work.train_samples or None)
    return RunFacts(
        run_id=run.run_id,
        repeat=run.repeat,
        attempt=run.attempt,
        study=run.study,
        cell=run.cell,
        result_number=run.result_number,
        allocation=msgspec.convert(allocation, Granted, from_attributes=True),
        site=run.site.name,
        engine=run.site.engine,
        nodes=tuple(_node_record(node) for node in nodes),
        threads_per_rank=threads_per_rank(run.cell, allocation.head),
        preflight=None if attempt.preflight is None else attempt.preflight.record,
        earlier=attempt.resumed,
        exclusive=allocation.exclusive,
        warnings=tuple(attempt.warnings),
        windows_seen=tuple(attempt.windows),
        dataset=found_dataset,
        splits=None if dataset is None else dataset.splits,
        model_macs=None if work.model is None else work.model.macs,
        model_first_macs=None if work.model is None else 0 if run.cell.input_gradient else work.model.first_macs,
        macs_by_length=work.macs_by_length,
        provenance={
            "slipway_version": VERSION,
            "python": platform.python_version(),
            **asdict(_git_of(attempt.git)),
            **{key: None if head is None else getattr(head.facts, key) for key in ("kernel", "os", "cpu_model")},
            "driver_version": _driver(nodes) if allocation.device == "cuda" else None,
            **_image_provenance(run.site, work),
            **({"program_digest": work.framework.digest} if work.framework.own else {}),
            **_site_provenance(run.site),
        },
    )


def _driver(nodes: Sequence[NodeHandle]) -> str | None:
    found = {ready.facts.driver_version for node in nodes if (ready := node.last(reports.Ready)) is not None}
    return " + ".join(sorted(version for version in found if version)) or None


def _image_provenance(site: Site, work: Work) -> dict[str, object]:
    if not in_container(site.engine):
        return {}
    if work.image is None:
        return {"image": at_site(work.framework, site).image, "image_digest": None, "image_id": None}
    pinned = work.image.image
    return {"image": pinned.reference, "image_digest": pinned.digest, "image_id": pinned.image_id}


def _site_provenance(site: Site) -> dict[str, object]:
    mounts = [{"source": source, "target": target, "writable": writable} for source, target, writable in site.mounts]
    return {**({"site_mounts": mounts} if mounts else {}), **({"site_env": dict(site.env)} if site.env else {})}


def _node_record(node: NodeHandle) -> model.Node:
    ready, staged, seen = node.last(reports.Ready), node.last(reports.Staged), node.last(reports.GpusSeen)
    models = node.node.gpu_models or (None,) * len(node.node.gpus)
    facts = {} if ready is None else {key: getattr(ready.facts, key) for key in OF_MACHINE}
    return model.Node(
        name=node.node.name,
        hostname=node.node.hostname if ready is None else ready.facts.hostname,
        cores=node.node.cores,
        gpus=tuple(model.Gpu(uuid=uuid, model=name) for uuid, name in zip(node.node.gpus, models, strict=True)),
        gpus_seen=None if seen is None else seen.seen,
        image_s=None if staged is None or staged.image is None else staged.image.seconds,
        stage=None if staged is None or staged.dataset is None else msgspec.convert(staged.dataset, model.Stage, from_attributes=True),
        **facts,
    )


def _git_of(call: event_loop.Call) -> GitState:
    found = GitState()
    if call.finished:
        with contextlib.suppress(errors.SlipwayError):
            found = call.result(GitState)
    return found
