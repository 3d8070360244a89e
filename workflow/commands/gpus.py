"""List this node's GPUs for `slipway gpus`, which of them this process was granted, and how that is known."""

import os
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from base import errors, humanize
from cluster.detection import off_node, scheduler_of
from cluster.gpus.decision import Decision, decide, or_raise
from cluster.gpus.listing import App, Gpu, node_buses, query_apps, query_gpus, short_bus
from workflow.commands.options import JsonOption
from workflow.commands.watching import output


def main(
    explain: Annotated[bool, typer.Option("--explain", help="Say step by step how it was decided: variables, rule, result.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show this node's GPUs by UUID, in the order of the PCI bus, which of them this process was granted, and who uses them.

    Inside a job, run it where the node program would run, such as `srun --overlap slipway gpus --explain`. A GPU that MIG divides
    is listed as its instances. Exit 14: it cannot be decided which were granted, or nvidia-smi fails.
    """
    gpus = query_gpus()
    scheduler = scheduler_of(os.environ)
    decision = decide(gpus, os.environ, everything=scheduler is None, node_buses=node_buses())
    apps, trouble = _apps() if gpus else ((), None)
    if as_json:
        output.json_value(_json(gpus, decision, apps, trouble))
    else:
        _print(gpus, decision, apps, trouble)
        if explain:
            _explain(decision, os.environ)
    or_raise(decision)


def _apps() -> tuple[tuple[App, ...], str | None]:
    """Return the processes on the GPUs, or why they are not known."""
    try:
        return query_apps(), None
    except (errors.SlipwayError, ValueError) as error:
        return (), str(error)


def _print(gpus: Sequence[Gpu], decision: Decision, apps: Sequence[App], trouble: str | None) -> None:
    output.line(f"{os.uname().nodename}: {_count(gpus)}")
    if gpus:
        rows = [
            (short_bus(gpu.bus_id), gpu.uuid, gpu.model, _granted(gpu, decision), "; ".join(map(_app, _on(gpu, apps))) or None)
            for gpu in gpus
        ]
        output.table(("bus", "uuid", "model", "granted", "used by"), rows)
    if trouble is not None:
        output.line(f"who uses them is not known: {trouble}")
    unlisted = [gpu.uuid for gpu in decision.gpus if gpu not in gpus]
    if unlisted:
        output.line(f"granted, and not listed here: {', '.join(unlisted)}")


def _explain(decision: Decision, environ: Mapping[str, str]) -> None:
    output.line()
    for number, step in enumerate(decision.steps, start=1):
        output.line(f"{number}. {step}")
    if why := off_node(environ):
        output.line(why)


def _count(gpus: Sequence[Gpu]) -> str:
    if not gpus:
        return "no GPUs show here: nvidia-smi is not on PATH, or it lists none"
    instances = sum(1 for gpu in gpus if gpu.is_instance)
    said = [humanize.counted(len(gpus) - instances, "GPU")] if instances < len(gpus) else []
    return " and ".join(said + ([humanize.counted(instances, "MIG instance")] if instances else []))


def _granted(gpu: Gpu, decision: Decision) -> str:
    if decision.refusal is not None:
        return "not known"
    return "yes" if gpu in decision.gpus else "no"


def _on(gpu: Gpu, apps: Sequence[App]) -> list[App]:
    return [app for app in apps if app.gpu == gpu.uuid]


def _app(app: App) -> str:
    memory = f", {app.used_mib} MiB" if app.used_mib is not None else ""
    return f"process {app.pid} ({app.name}) of {app.owner or 'another user'}{memory}"


def _json(gpus: Sequence[Gpu], decision: Decision, apps: Sequence[App], trouble: str | None) -> dict[str, object]:
    return {
        "node": os.uname().nodename,
        "scheduler": scheduler_of(os.environ),
        "gpus": [
            {
                "uuid": gpu.uuid,
                "bus_id": gpu.bus_id,
                "model": gpu.model,
                "number": gpu.number,
                "granted": None if decision.refusal is not None else gpu in decision.gpus,
                "processes": [{"pid": app.pid, "name": app.name, "owner": app.owner, "used_mib": app.used_mib} for app in _on(gpu, apps)],
            }
            for gpu in gpus
        ],
        "processes_unknown": trouble,
        "granted": [gpu.uuid for gpu in decision.gpus],
        "rule": decision.rule,
        "refusal": decision.refusal,
        "steps": list(decision.steps),
    }
