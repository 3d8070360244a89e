"""What a run needs to know of a framework's folder: its image, interpreter, command and environment, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from base.errors import UnsupportedRequest
from containers.step_lines import LogEvents, StepLines, events_of
from workflow.run.plan import Framework, Sidecar
from workflow.study.cell import Cell


def describe_framework(cell: Cell, device: str) -> Framework:
    """What of framework.yaml a start needs, or of the study's own program. A name with a slash is the folder itself."""
    from containers.frameworks import check_supports, load_framework
    from containers.frameworks.environment import own_python
    from containers.frameworks.spec import read_framework

    if cell.program is not None:
        return of_program(cell.program)
    name = cell.framework
    spec = read_framework(Path(name, "framework.yaml")) if "/" in name else load_framework(name)
    check_supports(spec, {**cell.to_json(), "device": device})
    events, lines = events_of(spec.events)
    if events == "log" and cell.steps is None:
        raise UnsupportedRequest(
            f"framework {spec.name!r} writes no events, and its steps are counted by lines: steps are needed, not epochs"
        )
    return Framework(
        name=spec.name,
        folder=str(spec.folder),
        image=spec.image,
        python=spec.python,
        launcher=spec.launcher,
        env=spec.env,
        sidecars=tuple(_sidecar(asdict(sidecar)) for sidecar in spec.sidecars),
        command=spec.command,
        events=events,
        lines=lines,
        checkpoint=spec.checkpoint,
        bare_python=own_python(spec, cell.strategy, cell.backend),
    )


def of_program(program: Mapping[str, Any]) -> Framework:
    """What a start needs of a program of a study. Its folder has no digest yet: see `taken_along`."""
    said = program.get("events", "program")
    events, lines = events_of(said if isinstance(said, str) else LogEvents(log=StepLines(**said["log"])))
    return Framework(
        name=program["name"],
        own=True,
        folder=program.get("folder") or "",
        image=program.get("image"),
        python=program["python"],
        bare_python=program["python"] if program["python"].startswith("/") else None,
        launcher=program["launcher"],
        command=tuple(program["command"]),
        env=tuple(program.get("env_from", ())),
        sidecars=tuple(map(_sidecar, program.get("sidecars", ()))),
        variables=tuple(sorted(program["env"].items())),
        mounts=tuple((mount["source"], mount["target"], mount["writable"]) for mount in program["mounts"]),
        network=program.get("network", "host"),
        checkpoint=program["checkpoint"],
        events=events,
        lines=lines,
        packages=tuple(program.get("packages", ())),
    )


def _sidecar(words: Mapping[str, Any]) -> Sidecar:
    """`words`: its keys, as framework.yaml and the study have them."""
    env = tuple((name, str(value)) for name, value in sorted(words["env"].items()))
    return Sidecar(name=words["name"], where=words["where"], command=tuple(words["command"]), env=env, ends=words["ends"])


def taken_along(framework: Framework) -> Framework:
    """With the digest of the folder as it is now. Reads all of it. Raises ConfigError, StorageError."""
    from containers.program_folder import look_at

    return replace(framework, digest=look_at(Path(framework.folder)).digest) if framework.own and framework.folder else framework
