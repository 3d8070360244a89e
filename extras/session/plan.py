"""Describe what a session starts as a run describes it: its cell, its program, its job. Pure."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from containers.engines import in_container
from extras.session.request import SessionRequest
from workflow.study.cell import Cell
from workflow.study.site import Site

NAME: Final = "session"
"""The name of a session's program."""
INSIDE: Final = "/run/slipway-session"
"""The directory of the sockets, as a container sees it."""
WRAPPER: Final = ("{python}", "{lib}/slipway_session.py")
OTHER_NODES: Final = "beside"
"""The kind of the program on the other nodes: the same command, without the events of the session."""


def supervisor_argv(python: str, directory: str) -> tuple[str, ...]:
    """Return the command that the job of a session executes."""
    return (python, "-P", "-m", "extras.session.supervisor", "--session", directory)


def site_of(request: SessionRequest) -> Site:
    """Return the site, without GPUs where the session asks for none: then the scheduler is asked for none."""
    return request.site if request.gpus else replace(request.site, gpus_per_node=None, device="cpu")


def session_cell(request: SessionRequest, directory: str) -> Cell:
    """Return the cell of a session, as a run has one. `directory`: on the node of the program, where its sockets are."""
    contained = in_container(request.site.engine)
    settings = {"directory": INSIDE if contained else directory, "ports": request.ports, "network": request.network}
    mounts = ((directory, INSIDE, True), *request.mounts)
    beside = [{"name": OTHER_NODES, "where": "each", "command": (*WRAPPER, OTHER_NODES, *request.command), "env": {}, "ends": "with-ranks"}]
    program: dict[str, object] = {
        "name": NAME,
        "command": (*WRAPPER, request.kind, *request.command),
        "launcher": "single",
        "python": request.python,
        "env": {"SLIPWAY_SESSION": json.dumps(settings)},
        "mounts": [{"source": source, "target": target, "writable": may} for source, target, may in mounts] if contained else [],
        "version": 1,
        "checkpoint": False,
        **({"network": "none"} if request.ports and request.network == "own" else {}),
        **({} if request.image is None else {"image": request.image}),
        **({"sidecars": beside} if request.nodes > 1 else {}),
    }
    return Cell(
        cell_id=request.session,
        framework=NAME,
        mode="train",
        model="none",
        dataset=request.dataset or "none",
        dataset_spec=request.dataset_spec,
        batch_size=1,
        global_batch_size=max(1, request.gpus) * request.nodes,
        nodes=request.nodes,
        gpus_per_node=max(1, request.gpus),
        precision="fp32",
        layout="nchw",
        comm_hook="none",
        device="site" if request.gpus else "cpu",
        threads="auto",
        seed=0,
        optimizer={},
        steps={"warmup": 0, "measured": 1, "total": 1},
        epochs=None,
        save_parameters=False,
        program=program,
    )


def sockets(request: SessionRequest, directory: str) -> list[str]:
    """Return the paths of the sockets of a session on its node."""
    if request.kind in ("shell", "notebook"):
        return [f"{directory}/s.sock"]
    return [f"{directory}/p{port}.sock" for port in request.ports]


def tunnel_argv(places: Sequence[tuple[int, str]], node: str, login: str | None) -> tuple[str, ...]:
    """Return the command for a laptop: each local port leads to a socket on `node`, through `login` where that is another machine."""
    forwards = [word for port, path in places for word in ("-L", f"127.0.0.1:{port}:{path}")]
    jump = () if login is None else ("-J", login)
    return ("ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15", *forwards, *jump, node)


def addresses(request: SessionRequest, ports: Sequence[int], token: str) -> list[str]:
    """Return what to open in a browser on the laptop; `ports`: the local ones."""
    place = "lab" if request.kind == "notebook" else ""
    return [f"http://127.0.0.1:{port}/{place}?token={token}" for port in ports]
