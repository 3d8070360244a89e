"""What the record says besides the ending and the events: who ran where, when, with what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from base.errors import SlipwayError
from containers.engines import in_container
from workflow.run.link.calls import Call
from workflow.run.link.said import GpusSeen, Ready, Staged
from workflow.run.plan import at_site, threads_per_rank
from workflow.run.record.step_clock import Clock
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.study.cell import Cell

if TYPE_CHECKING:
    from workflow.run.supervisor.supervisor import Supervisor

STAGED: Final = ("bytes", "copied_bytes", "storage_bytes", "peer_bytes", "checked_bytes", "hit", "seconds")


def times_of(clock: Clock) -> dict[str, Any]:
    """`start`, `end`, `run_s`, `steps_s`, as of now."""
    steps = clock.steps_s()
    return {
        "start": clock.start.isoformat(timespec="milliseconds"),
        "end": clock.end().isoformat(timespec="milliseconds"),
        "run_s": clock.run_s(),
        "steps_s": steps,
    }


def run_facts(run: Supervisor, nodes: Nodes) -> dict[str, Any]:
    """The first argument of record.build_record."""
    head = _facts(nodes.all[0])
    return {
        **{key: run.run[key] for key in ("run_id", "study", "cell", "repeat", "attempt", "result_number", "allocation")},
        "site": run.run["site"]["name"],
        "engine": run.run["site"]["engine"],
        "nodes": [_node_record(node) for node in nodes.all],
        "threads_per_rank": threads_per_rank(Cell.from_json(run.run["cell"]), run.allocation.head),
        "preflight": run.preflight and run.preflight.record,
        "earlier": None if run.resumed is None else run.resumed.to_json(),
        "exclusive": run.allocation.exclusive,
        "warnings": run.warnings,
        "dataset": {key: getattr(run.work.dataset, key) for key in ("name", "digest", "samples", "bytes")},
        "splits": run.work.dataset.splits,
        "provenance": {
            **_provenance(run.provenance),
            **{key: head.get(key) for key in ("kernel", "os", "cpu_model")},
            "driver_version": _driver(nodes) if run.allocation.device == "cuda" else None,
            **_image_provenance(run),
        },
    }


def _facts(node: NodeHandle) -> dict[str, Any]:
    """As the record has them; nothing where the node has not come up."""
    ready = node.last(Ready)
    return {} if ready is None else dict(msgspec.to_builtins(ready.facts))


def _driver(nodes: Nodes) -> str | None:
    """Of all nodes; several where they differ."""
    found = {_facts(node).get("driver_version") for node in nodes.all}
    return " + ".join(sorted(version for version in found if version)) or None


def _image_provenance(run: Supervisor) -> dict[str, Any]:
    """What the containers were started from: as it was named, and what that was pinned to, where it was."""
    if not in_container(run.run["site"]["engine"]):
        return {}
    pinned = (run.work.image or {}).get("image", {})
    reference = pinned.get("reference") or at_site(run.work.framework, run.run["site"]).image
    return {"image": reference, "image_digest": pinned.get("digest"), "image_id": pinned.get("image_id")}


def _node_record(node: NodeHandle) -> dict[str, Any]:
    facts, staged, seen = _facts(node), node.last(Staged), node.last(GpusSeen)
    models = node.node.gpu_models or (None,) * len(node.node.gpus)
    return {
        "name": node.node.name,
        "hostname": facts.get("hostname", node.node.hostname),
        "cores": list(node.node.cores),
        "gpus": [{"uuid": uuid, "model": model} for uuid, model in zip(node.node.gpus, models, strict=True)],
        "gpus_seen": None if seen is None else list(seen.seen),
        "cpu_model": facts.get("cpu_model"),
        "machine_cores": facts.get("machine_cores"),
        "memory_bytes": facts.get("memory_bytes"),
        "network": facts.get("network"),
        "driver_version": facts.get("driver_version"),
        "image_s": None if staged is None or staged.image is None else staged.image.seconds,
        "stage": None if staged is None else {key: getattr(staged.dataset, key) for key in STAGED},
    }


def _provenance(call: Call | None) -> dict[str, Any]:
    """Of this checkout; null where it was not known in time."""
    unknown: dict[str, Any] = {key: None for key in ("slipway_version", "git_sha", "git_dirty", "python")}
    if call is None or not call.finished:
        return unknown
    try:
        return dict(call.result())
    except SlipwayError:
        return unknown
