"""What the record says besides the ending and the events: who ran where, when, with what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from base.errors import SlipwayError
from containers.engines import in_container
from workflow.run.link.calls import Call
from workflow.run.link.said import GpusSeen, Ready, Staged
from workflow.run.plan import at_site, threads_per_rank
from workflow.run.record.step_clock import Clock, run_s
from workflow.run.storage.description import Work
from workflow.run.supervisor.nodes import NodeHandle
from workflow.run.supervisor.running_attempt import RunningAttempt
from workflow.study.site import Site

STAGED: Final = ("bytes", "copied_bytes", "storage_bytes", "peer_bytes", "checked_bytes", "hit", "seconds")


def times_of(clock: Clock) -> dict[str, Any]:
    """`start`, `end`, `run_s`, `steps_s`, as of now."""
    steps = clock.steps_s()
    return {
        "start": clock.start.isoformat(timespec="milliseconds"),
        "end": clock.end().isoformat(timespec="milliseconds"),
        "run_s": run_s(steps),
        "steps_s": steps,
    }


def run_facts(attempt: RunningAttempt, work: Work) -> dict[str, Any]:
    """The first argument of record.build_record."""
    run, allocation, nodes = attempt.run, attempt.job.allocation, attempt.nodes.all
    head = _facts(nodes[0])
    return {
        **run.names(),
        "study": run.study,
        "cell": run.cell.to_json(),
        "result_number": run.result_number,
        "allocation": allocation.to_json(),
        "site": run.site.name,
        "engine": run.site.engine,
        "nodes": [_node_record(node) for node in nodes],
        "threads_per_rank": threads_per_rank(run.cell, allocation.head),
        "preflight": attempt.preflight and attempt.preflight.record,
        "earlier": None if attempt.resumed is None else attempt.resumed.to_json(),
        "exclusive": allocation.exclusive,
        "warnings": attempt.warnings,
        "windows_seen": [list(seen) for seen in attempt.windows],
        "dataset": None if work.dataset is None else {key: getattr(work.dataset, key) for key in ("name", "digest", "samples", "bytes")},
        "splits": None if work.dataset is None else work.dataset.splits,
        "model_macs": None if work.model is None else work.model.macs,
        "model_first_macs": None if work.model is None else work.model.first_macs,
        "macs_by_length": work.macs_by_length,
        "provenance": {
            **_provenance(attempt.provenance),
            **{key: head.get(key) for key in ("kernel", "os", "cpu_model")},
            "driver_version": _driver(nodes) if allocation.device == "cuda" else None,
            **_image_provenance(run.site, work),
            **({"program_digest": work.framework.digest} if work.framework.own else {}),
            **_site_provenance(run.site),
        },
    }


def _facts(node: NodeHandle) -> dict[str, Any]:
    """As the record has them; nothing where the node has not come up."""
    ready = node.last(Ready)
    return {} if ready is None else dict(msgspec.to_builtins(ready.facts))


def _driver(nodes: Sequence[NodeHandle]) -> str | None:
    """Of all nodes; several where they differ."""
    found = {_facts(node).get("driver_version") for node in nodes}
    return " + ".join(sorted(version for version in found if version)) or None


def _image_provenance(site: Site, work: Work) -> dict[str, Any]:
    """What the containers were started from: as it was named, and what that was pinned to, where it was."""
    if not in_container(site.engine):
        return {}
    if work.image is None:
        return {"image": at_site(work.framework, site).image, "image_digest": None, "image_id": None}
    pinned = work.image.image
    return {"image": pinned.reference, "image_digest": pinned.digest, "image_id": pinned.image_id}


def _site_provenance(site: Site) -> dict[str, Any]:
    """What the site adds to all containers and processes; nothing where it adds nothing."""
    mounts = [{"source": source, "target": target, "writable": writable} for source, target, writable in site.mounts]
    return {**({"site_mounts": mounts} if mounts else {}), **({"site_env": dict(site.env)} if site.env else {})}


def _node_record(node: NodeHandle) -> dict[str, Any]:
    facts, staged, seen = _facts(node), node.last(Staged), node.last(GpusSeen)
    models = node.node.gpu_models or (None,) * len(node.node.gpus)
    return {
        "name": node.node.name,
        "hostname": facts.get("hostname", node.node.hostname),
        "cores": list(node.node.cores),
        "gpus": [{"uuid": uuid, "model": model} for uuid, model in zip(node.node.gpus, models, strict=True)],
        "gpus_seen": None if seen is None else list(seen.seen),
        **{key: facts.get(key) for key in ("cpu_model", "machine_cores", "memory_bytes", "network", "driver_version")},
        "image_s": None if staged is None or staged.image is None else staged.image.seconds,
        "stage": None if staged is None or staged.dataset is None else {key: getattr(staged.dataset, key) for key in STAGED},
    }


def _provenance(call: Call) -> dict[str, Any]:
    """Of this checkout; null where it was not known in time."""
    unknown: dict[str, Any] = {key: None for key in ("slipway_version", "git_sha", "git_dirty", "python")}
    if not call.finished:
        return unknown
    try:
        return dict(call.result())
    except SlipwayError:
        return unknown
