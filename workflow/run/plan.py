"""Plan what a run starts, as values: commands and variables of its ranks (torchrun, mpirun), ports, container, cell.json, node programs.

`slipway plan --cell` prints it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from base.errors import UnsupportedRequest
from base.jsonfile import canonical_json
from cluster.types import Allocation, AllocationRequest, Node
from containers import rank_variables
from containers.models.layers import without_dropout
from containers.spec import ContainerSpec, Owner, Paths, ProcessSpec, labels_of
from containers.step_lines import Events, StepLines
from workflow.study.cell import Cell, Run, plain_text
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
    ends: rank_variables.SidecarEnds = "stopped"


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
    """True if it is a program of the study: nodes work with a copy of its folder, which is empty where it has none."""
    digest: str | None = None
    """The digest of the files in that folder, when the run began."""
    variables: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str, bool], ...] = ()
    """(source, target, whether it may be written) of what a container gets beside what all have."""
    library: tuple[str, ...] = ()
    """Folders that its program finds on its path, beside what all programs have there."""
    packages: tuple[str, ...] = ()
    """The packages that the interpreter of a study's program must be able to import."""
    network: Literal["host", "none"] = "host"
    """The network of its container: the node's, or none but a loopback of its own."""


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
    """The id of the image, if it was pinned."""
    ends_at: float | None = None
    """The deadline by the node's monotonic clock."""
    resumed: bool = False
    secret: str = "<secret>"  # noqa: S105 - what stands in a plan that is only shown
    """The secret by which processes of the run know each other."""


def supervisor_argv(python: str, results_dir: str, asked: str, images: str | None = None) -> tuple[str, ...]:
    """Return the command of the rule for one run in its allocation. `asked`: the requested result, as storage/results.py reads it.
    `images`: the file of the rule `image`, where runs are containers."""
    argv = (python, "-P", "-m", "workflow.run.supervisor", "--results", results_dir, *(() if images is None else ("--images", images)))
    return (*argv, "--run", asked)


def node_argv(
    python: str, address: tuple[str, int], setup: Sequence[str] = (), device: str | None = None, interface: str | None = None
) -> tuple[str, ...]:
    """Return the command of a node program; a scheduler adds how it knows which node it is. `setup`: the site's shell lines; `device` and
    `interface`: where the node has to find out what it was granted."""
    argv: tuple[str, ...] = (python, "-P", "-m", "workflow.run.node", "--supervisor", f"{address[0]}:{address[1]}")
    argv += ("--device", device) if device is not None else ()
    argv += ("--interface", interface) if interface is not None else ()
    if not setup:
        return argv
    return ("bash", "-c", "\n".join([*setup, 'exec "$@"']), "slipway-node", *argv)


def attempt_tag(run_id: str, attempt: int, token: str) -> str:
    """Name one attempt on this cluster: work directory, containers, processes. `token`: of prepare.tag_suffix."""
    return f"{run_id}-a{attempt}-{token}"


def allocation_request(
    cell: Cell, cells: Iterable[Cell], site: Site, node_set: tuple[int, int] | None = None, avoid: tuple[str, ...] = ()
) -> AllocationRequest:
    """Return what `cell` needs, among the `cells` of its study. `node_set`: which of how many sets of the job's nodes, where repeats have
    nodes of their own. `avoid`: nodes that failed before."""
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
    """Return the memory per node: on a shared node the share of the run's job, None for all of it, or what the scheduler gives."""
    memory, gpus = site.memory_per_node_bytes, site.gpus_per_node
    if not site.share_nodes or not memory or not gpus:
        return None
    return int(memory * min(1.0, cell.gpus_per_node / gpus))


def threads_per_rank(cell: Cell, node: Node) -> int:
    """Return the cell's own number, or the node's cores / its processes."""
    return max(1, len(node.cores) // cell.gpus_per_node) if cell.threads == "auto" else cell.threads


def at_site(framework: Framework, site: Site) -> Framework:
    """Return the framework with the site's image, if it names one, and the site's mounts and variables, if the program has none of the same
    target or name. An outer mount stands before what is mounted in it."""
    mounts = {mount[1]: mount for mount in (*site.mounts, *framework.mounts)}
    return replace(
        framework,
        image=site.images.get(framework.name) or framework.image,
        mounts=tuple(mounts[target] for target in sorted(mounts)),
        variables=tuple(sorted({**dict(site.env), **dict(framework.variables)}.items())),
    )


def cell_document(run: Run, attempt: int, allocation: Allocation, model: Model | None) -> CellDocument:
    """Return the cell document of an attempt. `model`: None while the classes or the size of the images are not known."""
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
    if launcher == "mpirun" and {one.name for one in framework.sidecars} & rank_variables.MPI_SIDECARS:
        raise UnsupportedRequest(
            f"framework {name!r} has a sidecar of a name of mpirun's own; valid: none of {', '.join(sorted(rank_variables.MPI_SIDECARS))}"
        )


def processes_of(framework: Framework, cell: Cell) -> int:
    """Return how many processes are ranks, and write events: one for each of the cell, or one that works for all of them."""
    return 1 if framework.launcher == "single" else cell.world_size


def node_ranks(cell: Cell, index: int) -> tuple[int, ...]:
    """Return the ranks of node `index`: as many as its processes, in order of the nodes."""
    each = cell.gpus_per_node
    return tuple(range(index * each, (index + 1) * each))


# A program that writes no events is started below an adapter, which writes them for it.


ADAPTER: Final = ("{python}", "{lib}/slipway_log.py")


def below_adapter(framework: Framework, mode: str) -> Framework:
    """Put the command of the adapter before a program that writes no events. Python must not keep back what it prints. In `infer` ranks do
    not wait for each other, and one tells nothing of the others."""
    if framework.events == "program":
        return framework
    lines = framework.lines
    told: dict[str, object] = {"none": True}
    if lines is not None:
        told = {"step": lines.step, "every": lines.every, "ranks": "all" if mode == "infer" else lines.ranks}
    variables = {"PYTHONUNBUFFERED": "1", **dict(framework.variables), "SLIPWAY_EVENTS": canonical_json(told).decode()}
    return replace(framework, command=(*ADAPTER, *framework.command), variables=tuple(variables.items()))


# The sidecars of launcher mpirun: mpirun on the head, and on each node a process that starts its orted.
#
# The programs, and why there is no ssh: containers/lib/slipway_mpi.py.


LAUNCHER: Final = "mpirun"
MPI_PORT: Final = "mpi"
"""The name of the port on each node at which mpirun asks it to start orted."""
_SCRIPT: Final = ("{python}", "{lib}/slipway_mpi.py")
_RANK: Final = ("sh", "-c", 'exec "$0" "$SLIPWAY_LIB/slipway_mpi.py" rank', "{python}")
"""The command of a rank. mpirun passes the words of the head, but a node may have another cache: SLIPWAY_LIB comes from its own orted."""
HOLD: Final = (*_SCRIPT, "hold")
"""The words before the command of a rank."""


def mpi_sidecars(nodes: int, each: int) -> tuple[Sidecar, ...]:
    """Return the sidecars of mpirun as framework.yaml would have them; both end with the ranks."""
    hosts = ",".join(f"slipway-node-{index}:{each}" for index in range(nodes))
    started = (LAUNCHER, "--bind-to", "none", "--map-by", "slot", "-H", hosts, *_RANK)
    return (
        Sidecar(name="orted", where="each", command=(*_SCRIPT, "node"), ends="with-ranks"),
        Sidecar(name=LAUNCHER, where="head", command=(*_SCRIPT, "mpirun", *started), ends="with-ranks"),
    )


def mpi_variables(
    framework: Framework, places: Sequence[tuple[str, int]], interface: str | None, secret: str, *, crowded: bool
) -> dict[str, str]:
    """Return the variables of these sidecars. The program may set what Open MPI reads in another way (`env`). `places`: address and port of
    each node; `crowded`: whether a node has fewer cores than ranks, which must not wait by spinning then."""
    wanted = {
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_leave_session_attached": "1",
        "OMPI_MCA_if_base_do_not_resolve": "1",
        "OMPI_MCA_btl": "tcp,self",
        **({"OMPI_MCA_mpi_yield_when_idle": "1"} if crowded else {}),
        **_network(places[0][0], interface),
    }
    taken = dict(framework.variables)
    free = {name: value for name, value in wanted.items() if name not in taken}
    return {**free, "SLIPWAY_MPI_NODES": " ".join(map(rank_variables.host_port, places)), "SLIPWAY_MPI_KEY": secret}


def _network(head: str, interface: str | None) -> dict[str, str]:
    """Name the network of orteds and ranks: by itself Open MPI leaves out the loopback, which is all that nodes of one machine may have."""
    name = "lo" if interface is None and ipaddress.ip_address(head).is_loopback else interface
    return {} if name is None else {"OMPI_MCA_oob_tcp_if_include": name, "OMPI_MCA_btl_tcp_if_include": name}


# Ports that a run needs on each of its nodes, by name. Each node reserves its own before any process is told of them.


MASTER: Final = "master"
"""The name of the rendezvous port, MASTER_PORT, on the head."""

Reserved = Sequence[Sequence[int]]
"""The ports of each node, in the order of `port_names`."""


def port_names(framework: Framework, cell: Cell, index: int) -> tuple[str, ...]:
    """Name the ports of node `index`; the master's is the first of the head."""
    master = (MASTER,) if index == 0 else ()
    mpi = (MPI_PORT,) if framework.launcher == LAUNCHER else ()
    of_ranks = tuple(map(rank_port, node_ranks(cell, index))) if set(framework.env) & set(rank_variables.PORT_PER_RANK) else ()
    return master + mpi + of_ranks + (_command_ports(framework) if index == 0 else ())


def _command_ports(framework: Framework) -> tuple[str, ...]:
    """Name the ports that commands ask for."""
    commands = (framework.command, *(sidecar.command for sidecar in framework.sidecars))
    return tuple(f"{rank_variables.PORT}{name}" for name in rank_variables.ports_in(word for command in commands for word in command))


def rank_port(rank: int) -> str:
    """Name the port that a rank listens on."""
    return f"rank-{rank}"


# Processes of one node by the launcher of the framework, their environment, and the container around them.


TORCHRUN: Final = "torchrun"
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Start:
    """What is started, where, and the ports of all nodes by name."""

    asked: Workload
    allocation: Allocation
    index: int
    ports: list[dict[str, int]]

    @property
    def master(self) -> tuple[str, int]:
        return self.allocation.head.address, self.ports[0][MASTER]


def container_spec(asked: Workload, allocation: Allocation, index: int, paths: Paths, reserved: Reserved) -> ContainerSpec:
    """Return all that runs on node `index`. `reserved`: the ports of all nodes."""
    node = allocation.nodes[index]
    asked = replace(asked, framework=below_adapter(asked.framework, asked.cell.mode))
    cell, framework = asked.cell, asked.framework
    ports = [dict(zip(port_names(framework, cell, number), of_node, strict=True)) for number, of_node in enumerate(reserved)]
    start = Start(asked=asked, allocation=allocation, index=index, ports=ports)
    master = start.master
    processes = _sidecars(start) + _PROCESSES[framework.launcher](start)
    args = {f"SLIPWAY_ARG_{name.upper()}": plain_text(value) for name, value in (cell.args or {}).items()}
    env = {
        TAG: asked.owner.tag,
        "SLIPWAY_NODE_RANK": str(index),
        "SLIPWAY_NUM_NODES": str(len(allocation.nodes)),
        "SLIPWAY_GPUS_PER_NODE": str(cell.gpus_per_node),
        "SLIPWAY_MASTER_ADDR": master[0],
        "SLIPWAY_MASTER_PORT": str(master[1]),
        **{name: str(threads_per_rank(cell, node)) for name in THREAD_VARIABLES},
        **_interface(node),
        **dict(framework.variables),
        **args,
    }
    if allocation.device == "cuda":
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return ContainerSpec(
        name=f"{asked.owner.tag}-n{index}",
        image=framework.image,
        python=framework.python or "python3",
        bare_python=framework.bare_python,
        mounts=framework.mounts,
        network=framework.network,
        words=(*(_words_of(cell) if framework.own else ()), *_network_words(start)),
        processes=processes,
        paths=paths,
        device=allocation.device,
        gpus=node.gpus,
        cores=node.cores,
        env=tuple(sorted(env.items())),
        labels=labels_of(allocation, node.name, asked.owner),
        image_id=asked.image_id,
        resumed=asked.resumed,
        has_parameters=cell.parameters_file is not None and not asked.resumed,
        deadline=asked.ends_at,
    )


def _words_of(cell: Cell) -> tuple[tuple[str, str], ...]:
    """Return the values of the placeholders in a program's command that the cell knows."""
    args = {f"args.{name}": plain_text(value) for name, value in (cell.args or {}).items()}
    steps = (
        {}
        if cell.steps is None
        else {rank_variables.STEPS_PLACEHOLDER: str(cell.steps.get("total") or cell.steps["warmup"] + cell.steps["measured"])}
    )
    return tuple({**{key: str(getattr(cell, key)) for key in rank_variables.CELL_PLACES}, **steps, **args}.items())


def _network_words(start: Start) -> tuple[tuple[str, str], ...]:
    """Return the values of {head}, {address} and {port.NAME}."""
    head, node = start.allocation.head.address, start.allocation.nodes[start.index].address
    ports = ((name, str(port)) for name, port in start.ports[0].items() if name.startswith(rank_variables.PORT))
    return (("head", head), ("address", node), *ports)


def _interface(node: Node) -> dict[str, str]:
    """Name the interface. Without `=`, NCCL would take eth0 for the beginning of a name: eth01 too."""
    if node.interface is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": node.interface, "NCCL_SOCKET_IFNAME": f"={node.interface}"}


def _rank_env(start: Start, rank: int) -> tuple[tuple[str, str], ...]:
    place, master = _position(start, rank), start.master
    return (
        ("RANK", str(rank)),
        ("LOCAL_RANK", str(place.local_rank)),
        ("WORLD_SIZE", str(place.world_size)),
        ("LOCAL_WORLD_SIZE", str(place.local_size)),
        ("NODE_RANK", str(start.index)),
        ("MASTER_ADDR", master[0]),
        ("MASTER_PORT", str(master[1])),
        *rank_variables.rendered(start.asked.framework.env, place).items(),
    )


def _position(start: Start, rank: int) -> rank_variables.RankPosition:
    asked, allocation, index, ports = start.asked, start.allocation, start.index, start.ports
    each, node = asked.cell.gpus_per_node, allocation.nodes[index]
    has_ports = bool(set(asked.framework.env) & set(rank_variables.PORT_PER_RANK))
    ranks = [(host, name) for host in range(len(allocation.nodes)) for name in map(rank_port, node_ranks(asked.cell, host))]
    return rank_variables.RankPosition(
        rank=rank,
        local_rank=rank - index * each,
        local_size=each,
        node_rank=index,
        nodes=len(allocation.nodes),
        address=node.address,
        interface=node.interface,
        device=allocation.device,
        master=start.master,
        endpoints=tuple((allocation.nodes[host].address, ports[host][name]) for host, name in ranks) if has_ports else (),
        servers=_servers(asked.framework, len(allocation.nodes)),
    )


def _sidecars(start: Start) -> tuple[ProcessSpec, ...]:
    framework, place = start.asked.framework, _position(start, start.index * start.asked.cell.gpus_per_node)
    of_mpi = mpi_sidecars(place.nodes, place.local_size) if framework.launcher == LAUNCHER else ()
    mpi = _mpi_variables(start) if of_mpi else {}
    env = {
        "MASTER_ADDR": place.master[0],
        "MASTER_PORT": str(place.master[1]),
        **rank_variables.rendered_for_sidecars(framework.env, place),
    }
    return tuple(
        ProcessSpec(
            name=f"sidecar-{one.name}-{start.index}",
            ranks=(),
            sidecar=one.name,
            command=one.command,
            env=tuple({**env, "SLIPWAY_SIDECAR": one.name, **dict(one.env), **(mpi if one in of_mpi else {})}.items()),
            may_end=one.ends == "with-ranks",
        )
        for one in (*framework.sidecars, *of_mpi)
        if one.where == "each" or start.index == 0
    )


def _mpi_variables(start: Start) -> dict[str, str]:
    nodes, cell = start.allocation.nodes, start.asked.cell
    places = [(node.address, ports[MPI_PORT]) for node, ports in zip(nodes, start.ports, strict=True)]
    crowded = any(node.cores and len(node.cores) < cell.gpus_per_node for node in nodes)
    return mpi_variables(start.asked.framework, places, start.allocation.head.interface, start.asked.secret, crowded=crowded)


def _servers(framework: Framework, nodes: int) -> int:
    serving = [one for one in framework.sidecars if ("DMLC_ROLE", "server") in one.env]
    return sum(nodes if one.where == "each" else 1 for one in serving)


def _single(start: Start) -> tuple[ProcessSpec, ...]:
    """Return one process on the head; where the cell asks for more, it works for all of them, by the sidecars of the nodes or by itself."""
    if start.index > 0:
        return ()
    drives = (("SLIPWAY_DRIVES_ALL", "1"),) if start.asked.cell.world_size > 1 else ()
    return (ProcessSpec(name="rank-0", ranks=(0,), command=start.asked.framework.command, env=(*_rank_env(start, 0), *drives)),)


def _ranks(start: Start) -> tuple[ProcessSpec, ...]:
    return tuple(
        ProcessSpec(name=f"rank-{rank}", ranks=(rank,), command=start.asked.framework.command, env=_rank_env(start, rank))
        for rank in node_ranks(start.asked.cell, start.index)
    )


def _mpirun(start: Start) -> tuple[ProcessSpec, ...]:
    """Return the ranks; each waits for its place in MPI before it becomes the program."""
    return tuple(replace(process, command=(*HOLD, *process.command)) for process in _ranks(start))


def _torchrun(start: Start) -> tuple[ProcessSpec, ...]:
    """Return one torchrun per node, found by number, without a vote. The id keeps workers of an earlier start out; the local address is
    given because torchrun asks the resolver otherwise, which may not know it."""
    asked, allocation, index = start.asked, start.allocation, start.index
    command, master = asked.framework.command, start.master
    is_script = command[0] == "{python}" and len(command) > 1 and not command[1].startswith("-")
    program = command[1:] if is_script else ("--no-python", *command)
    ranks = node_ranks(asked.cell, index)
    options = (
        f"--nnodes={len(allocation.nodes)}",
        f"--node-rank={index}",
        f"--nproc-per-node={len(ranks)}",
        f"--rdzv-id={asked.owner.tag}-{allocation.restart_count}",
        f"--master-addr={master[0]}",
        f"--master-port={master[1]}",
        f"--local-addr={allocation.nodes[index].address}",
    )
    name = f"rank-{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank-{ranks[0]}"
    argv = ("{python}", "-m", "torch.distributed.run", *options, *program)
    return (ProcessSpec(name=name, ranks=ranks, command=argv, env=(), launcher=TORCHRUN),)


_PROCESSES: Final = {"single": _single, "ranks": _ranks, TORCHRUN: _torchrun, LAUNCHER: _mpirun}


# The framework's folder as plain values: image, interpreter, command, environment.


def describe_framework(cell: Cell, device: str) -> Framework:
    """Return what a start needs of framework.yaml, or of the study's own program. A name with a slash is the folder itself."""
    from containers.frameworks import check_supports, load_framework
    from containers.frameworks.own_python import own_python
    from containers.frameworks.spec import read_framework

    if cell.program is not None:
        return of_program(cell.program)
    name = cell.framework
    spec = read_framework(Path(name, "framework.yaml")) if "/" in name else load_framework(name)
    check_supports(spec, {**cell.to_json(), "device": device})
    return Framework(
        name=spec.name,
        folder=str(spec.folder),
        image=spec.image,
        python=spec.python,
        launcher=spec.launcher,
        env=spec.env,
        sidecars=tuple(_sidecar(asdict(sidecar)) for sidecar in spec.sidecars),
        command=spec.command,
        checkpoint=spec.checkpoint,
        bare_python=own_python(spec, cell.strategy, cell.backend),
        library=tuple(map(str, spec.library_folders)),
    )


def of_program(program: Mapping[str, Any]) -> Framework:
    """Return what a start needs of a program of a study. Its folder has no digest yet: see `taken_along`."""
    said = program.get("events", "program")
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
        events=cast("Events", said) if isinstance(said, str) else "log",
        lines=None if isinstance(said, str) else StepLines(**said["log"]),
        packages=tuple(program.get("packages", ())),
    )


def _sidecar(words: Mapping[str, Any]) -> Sidecar:
    env = tuple((name, str(value)) for name, value in sorted(words["env"].items()))
    return Sidecar(name=words["name"], where=words["where"], command=tuple(words["command"]), env=env, ends=words["ends"])


def taken_along(framework: Framework) -> Framework:
    """Add the digest of the folder as it is now. Reads all of it. Raises ConfigError, StorageError."""
    from containers.program_folder import look_at

    return replace(framework, digest=look_at(Path(framework.folder)).digest) if framework.own and framework.folder else framework
