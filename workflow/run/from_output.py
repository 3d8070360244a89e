"""How a program that writes no events is started: below an adapter, which writes them for it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from base.jsonfile import canonical_json
from workflow.run.plan import Framework

ADAPTER: Final = ("{python}", "{lib}/slipway_log.py")


def below_adapter(framework: Framework, mode: str) -> Framework:
    """With the command of the adapter before its own; as it is where it writes events itself. Python shall not keep back what it prints. In
    `infer` ranks do not wait for each other, and one tells nothing of the others."""
    if framework.events == "program":
        return framework
    lines = framework.lines
    told: dict[str, Any] = {"none": True}
    if lines is not None:
        told = {"step": lines.step, "every": lines.every, "ranks": "all" if mode == "infer" else lines.ranks}
    variables = {"PYTHONUNBUFFERED": "1", **dict(framework.variables), "SLIPWAY_EVENTS": canonical_json(told).decode()}
    return replace(framework, command=(*ADAPTER, *framework.command), variables=tuple(variables.items()))
