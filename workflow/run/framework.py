"""What a run needs to know of a framework's folder: its image, interpreter, command and environment, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow.run.plan import Framework


def describe_framework(cell: Mapping[str, Any], device: str) -> Framework:
    """What of framework.yaml a start needs. A name with a slash is the folder itself."""
    from containers.frameworks import check_supports, load_framework, read_framework

    name = cell["framework"]
    spec = read_framework(Path(name, "framework.yaml")) if "/" in name else load_framework(name)
    check_supports(spec, {**cell, "device": device})
    return Framework(
        name=spec.name,
        folder=str(spec.folder),
        image=spec.image,
        python=spec.python,
        launcher=spec.launcher,
        env=spec.env,
        sidecars=tuple(sidecar.command for sidecar in spec.sidecars),
        command=spec.command,
        events=spec.events,
        checkpoint=spec.checkpoint,
    )
