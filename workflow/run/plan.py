"""What a run will start, as values: framework, cell.json, argv of supervisor and node programs. Pure: `slipway plan --cell` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from base.errors import UnsupportedRequest
from cluster.types import Allocation, AllocationRequest, Node
from containers.labels import Owner
from containers.models.layers import without_dropout
from containers.renderings import MPI_SIDECARS, SidecarEnds
from containers.step_lines import Events, StepLines
from workflow.study.cell import Cell, Run
from workflow.study.site import Site, device_of

if TYPE_CHECKING:
    from containers.models import Model

TAG: Final = "SLIPWAY_ATTEMPT"
"""Environment variable of every process of an attempt: its value, the attempt's tag, finds what a killed node program left."""

LAUNCHERS: Final = ("single", "torchrun", "ranks", "mpirun")
RENDERED: Final = ("ranks", "single")
"""Launchers whose ranks we start ourselves, with variables of our choice."""
CELL_SCHEMA: Final = "slipway.cell/1"


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """A process around the ranks, as framework.yaml or the study has it."""

    name: str
    where: Literal["head", "each"]
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    ends: SidecarEnds = "stopped"


@dataclass(frozen=True, kw_only=True)
class Framework:
    """What a start needs of a framework's folder. Fields that are not described here are those of framework.yaml."""

    name: str
    folder: str
    image: str | None = None
    python: str | None = None
    bare_python: str | None = None
    """The interpreter on the nodes, where there is no container; None: that of Slipway."""
    launcher: str
    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    """Renderings of the allocation that the program wants."""
    sidecars: tuple[Sidecar, ...] = ()
    events: Events = "program"
    lines: StepLines | None = None
    """How lines with steps look, where `events` is `log`."""
    checkpoint: bool = False
    own: bool = False
    """Whether it is a program of the study: nodes work with a copy of its folder, which is empty where it has none."""
    digest: str | None = None
    """Of the files in that folder, when the run began."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables that its processes get."""
    mounts: tuple[tuple[str, str, bool], ...] = ()
    """(source, target, whether it may be written) of what a container gets beside what all have."""
    packages: tuple[str, ...] = ()
    """Of a program of the study: what its interpreter must be able to import."""
    network: Literal["host", "none"] = "host"
    """Of its container: the node's, or none but a loopback of its own."""


@dataclass(frozen=True, kw_only=True)
class CellDocument(Cell):
    """cell.json: the cell, what the allocation decided (device, threads), and the network's layers; None where they are not known yet."""

    schema: str = CELL_SCHEMA
    run_id: str
    repeat: int
    attempt: int
    model_layers: tuple[Mapping[str, Any], ...] | None
    model_parameters: int | None
    model_variant: str | None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is to run on all nodes of an allocation."""

    owner: Owner
    framework: Framework
    cell: CellDocument
    image_id: str | None = None
    """Where the image was pinned."""
    ends_at: float | None = None
    """The deadline by the node's monotonic clock."""
    resumed: bool = False
    secret: str = "<secret>"  # noqa: S105 - what stands in a plan that is only shown
    """By which processes of the run know each other."""


def supervisor_argv(python: str, results_dir: str, asked: str, images: str | None = None) -> tuple[str, ...]:
    """The command of the rule: one run, in its allocation. `asked`: of storage/asked_result.py. `images`: where runs are containers, the
    file of the rule `image`."""
    argv = (python, "-P", "-m", "workflow.run.supervisor", "--results", results_dir, *(() if images is None else ("--images", images)))
    return (*argv, "--run", asked)


def node_argv(
    python: str, address: tuple[str, int], setup: Sequence[str] = (), device: str | None = None, interface: str | None = None
) -> tuple[str, ...]:
    """The command of a node program; a scheduler adds how it knows which node it is. `setup`: the site's shell lines; `device` and
    `interface`: where the node has to find out what it was granted."""
    argv: tuple[str, ...] = (python, "-P", "-m", "workflow.run.node", "--supervisor", f"{address[0]}:{address[1]}")
    argv += ("--device", device) if device is not None else ()
    argv += ("--interface", interface) if interface is not None else ()
    if not setup:
        return argv
    return ("bash", "-c", "\n".join([*setup, 'exec "$@"']), "slipway-node", *argv)


def attempt_tag(run_id: str, attempt: int, token: str) -> str:
    """Names one attempt on this cluster: work directory, containers, processes. `token`: of prepare.where_and_who."""
    return f"{run_id}-a{attempt}-{token}"


def allocation_request(
    cell: Cell, cells: Iterable[Cell], site: Site, node_set: tuple[int, int] | None = None, avoid: tuple[str, ...] = ()
) -> AllocationRequest:
    """What `cell` needs, among the `cells` of its study.
    `node_set`: which of how many sets of the job's nodes, where repeats have nodes of their own. `avoid`: nodes that failed before."""
    return AllocationRequest(
        nodes=cell.nodes,
        gpus_per_node=cell.gpus_per_node,
        largest_nodes=max([cell.nodes, *(other.nodes for other in cells)]),
        device=device_of(cell.device, site),
        gres=cell.gpus_per_node if site.gpus_per_node else 0,
        cpus_per_node=site.cpus_per_node,
        memory_per_node_bytes=_memory_share(cell, site),
        share_nodes=site.share_nodes,
        node_set=node_set,
        avoid=avoid,
    )


def _memory_share(cell: Cell, site: Site) -> int | None:
    """On a shared node as much as the job of the run asks for; None: all of it, or what the scheduler gives."""
    memory, gpus = site.memory_per_node_bytes, site.gpus_per_node
    if not site.share_nodes or not memory or not gpus:
        return None
    return int(memory * min(1.0, cell.gpus_per_node / gpus))


def threads_per_rank(cell: Cell, node: Node) -> int:
    """The cell's own number, or the node's cores / its processes."""
    return max(1, len(node.cores) // cell.gpus_per_node) if cell.threads == "auto" else cell.threads


def at_site(framework: Framework, site: Site) -> Framework:
    """The framework with what the site says: its own image, where it names one, and mounts and variables where the program has none of the
    same target or name. An outer mount stands before what is mounted in it."""
    mounts = {mount[1]: mount for mount in (*site.mounts, *framework.mounts)}
    return replace(
        framework,
        image=site.images.get(framework.name) or framework.image,
        mounts=tuple(mounts[target] for target in sorted(mounts)),
        variables=tuple(sorted({**dict(site.env), **dict(framework.variables)}.items())),
    )


def cell_document(run: Run, attempt: int, allocation: Allocation, model: Model | None) -> CellDocument:
    """Of an attempt. `model`: None while the classes or the size of the images are not known."""
    decided = {"device": allocation.device, "threads": threads_per_rank(run.cell, allocation.head)}
    return CellDocument(
        **{**run.cell.to_json(), **decided},
        run_id=run.run_id,
        repeat=run.repeat,
        attempt=attempt,
        model_layers=None if model is None else model.layers if run.cell.dropout else without_dropout(model.layers),
        model_parameters=None if model is None else model.parameters,
        model_variant=None if model is None else model.variant,
    )


def check_framework(framework: Framework, nodes: int) -> None:
    """Raise UnsupportedRequest for what this version cannot start on so many nodes."""
    name, launcher = framework.name, framework.launcher
    if launcher not in LAUNCHERS:
        raise UnsupportedRequest(f"framework {name!r} wants launcher {launcher!r}, which is not here yet; valid: {', '.join(LAUNCHERS)}")
    if launcher == "single" and nodes > 1 and not any(one.where == "each" for one in framework.sidecars):
        raise UnsupportedRequest(
            f"framework {name!r} is one process on the head (launcher: single), and the cell asks for {nodes} nodes, on which nothing "
            "would run; valid: nodes: 1, or a sidecar with where: each, which works for it there"
        )
    if framework.env and launcher not in RENDERED:
        asked, valid = ", ".join(framework.env), ", ".join(RENDERED)
        raise UnsupportedRequest(
            f"framework {name!r} asks for {asked}, and {launcher} sets the variables of its ranks itself; valid: {valid}"
        )
    if launcher == "mpirun" and {one.name for one in framework.sidecars} & MPI_SIDECARS:
        raise UnsupportedRequest(
            f"framework {name!r} has a sidecar of the launcher mpirun's own names; valid: none of {', '.join(sorted(MPI_SIDECARS))}"
        )


def processes_of(framework: Framework, cell: Cell) -> int:
    """How many processes are ranks, and write events: one for each of the cell, or one that works for all of them."""
    return 1 if framework.launcher == "single" else cell.world_size


def node_ranks(cell: Cell, index: int) -> tuple[int, ...]:
    """The ranks of node `index`: as many as its processes, in order of the nodes."""
    each = cell.gpus_per_node
    return tuple(range(index * each, (index + 1) * each))
