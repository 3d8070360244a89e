"""All that runs on one node, by the launcher of its framework: processes, their environment, the container around them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from cluster.types import Allocation, Node
from containers.labels import labels_of
from containers.placeholders import CELL_PLACES, PORT, STEPS_PLACE
from containers.renderings import PORT_PER_RANK, RankPlace, rendered, rendered_for_sidecars
from containers.spec import ContainerSpec, Paths, ProcessSpec
from workflow.run.from_output import below_adapter
from workflow.run.mpi import HOLD, MPI_PORT, mpi_sidecars, mpi_variables
from workflow.run.mpi import LAUNCHER as MPI
from workflow.run.plan import TAG, Framework, Workload, node_ranks, threads_per_rank
from workflow.run.ports import MASTER, Reserved, ports_by_name, rank_port
from workflow.study.cell import Cell, plain_text

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
        """MASTER_ADDR and MASTER_PORT."""
        return self.allocation.head.address, self.ports[0][MASTER]


def container_spec(asked: Workload, allocation: Allocation, index: int, paths: Paths, reserved: Reserved) -> ContainerSpec:
    """All that runs on node `index`. `reserved`: the ports of all nodes."""
    node = allocation.nodes[index]
    asked = replace(asked, framework=below_adapter(asked.framework, asked.cell.mode))
    cell, framework = asked.cell, asked.framework
    start = Start(asked=asked, allocation=allocation, index=index, ports=ports_by_name(framework, cell, reserved))
    master = start.master
    processes = _sidecars(start) + _PROCESSES[framework.launcher](start)
    env = {
        TAG: asked.owner.tag,
        "SLIPWAY_NODE_RANK": str(index),
        "SLIPWAY_NUM_NODES": str(len(allocation.nodes)),
        "SLIPWAY_GPUS_PER_NODE": str(cell.gpus_per_node),
        "SLIPWAY_MASTER_ADDR": master[0],
        "SLIPWAY_MASTER_PORT": str(master[1]),
        **{name: str(threads_per_rank(cell, node)) for name in THREAD_VARIABLES},
        **_interface(node),
        **_own_variables(asked),
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
    """What placeholders in the command of a program stand for, as the cell says it."""
    args = {f"args.{name}": plain_text(value) for name, value in (cell.args or {}).items()}
    steps = {} if cell.steps is None else {STEPS_PLACE: str(cell.steps.get("total") or cell.steps["warmup"] + cell.steps["measured"])}
    return tuple({**{key: str(getattr(cell, key)) for key in CELL_PLACES}, **steps, **args}.items())


def _network_words(start: Start) -> tuple[tuple[str, str], ...]:
    """What {head}, {address} and {port.NAME} stand for."""
    head, node = start.allocation.head.address, start.allocation.nodes[start.index].address
    ports = ((name, str(port)) for name, port in start.ports[0].items() if name.startswith(PORT))
    return (("head", head), ("address", node), *ports)


def _own_variables(asked: Workload) -> dict[str, str]:
    """What a program of the study gets: its own variables, and SLIPWAY_ARG_<NAME> for each argument."""
    args = {f"SLIPWAY_ARG_{name.upper()}": plain_text(value) for name, value in (asked.cell.args or {}).items()}
    return {**dict(asked.framework.variables), **args}


def _interface(node: Node) -> dict[str, str]:
    """Without `=`, NCCL would take eth0 for the beginning of a name: eth01 too."""
    if node.interface is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": node.interface, "NCCL_SOCKET_IFNAME": f"={node.interface}"}


def _rank_env(start: Start, rank: int) -> tuple[tuple[str, str], ...]:
    place, master = _place(start, rank), start.master
    return (
        ("RANK", str(rank)),
        ("LOCAL_RANK", str(place.local_rank)),
        ("WORLD_SIZE", str(place.world_size)),
        ("LOCAL_WORLD_SIZE", str(place.local_size)),
        ("NODE_RANK", str(start.index)),
        ("MASTER_ADDR", master[0]),
        ("MASTER_PORT", str(master[1])),
        *rendered(start.asked.framework.env, place).items(),
    )


def _place(start: Start, rank: int) -> RankPlace:
    """Of a rank of this node, for its variables."""
    asked, allocation, index, ports = start.asked, start.allocation, start.index, start.ports
    each, node = asked.cell.gpus_per_node, allocation.nodes[index]
    has_ports = bool(set(asked.framework.env) & set(PORT_PER_RANK))
    ranks = [(host, name) for host in range(len(allocation.nodes)) for name in map(rank_port, node_ranks(asked.cell, host))]
    return RankPlace(
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
    """Those of this node; they stand before the ranks, and are started before them."""
    framework, place = start.asked.framework, _place(start, start.index * start.asked.cell.gpus_per_node)
    of_mpi = mpi_sidecars(place.nodes, place.local_size) if framework.launcher == MPI else ()
    mpi = _mpi_variables(start) if of_mpi else {}
    env = {"MASTER_ADDR": place.master[0], "MASTER_PORT": str(place.master[1]), **rendered_for_sidecars(framework.env, place)}
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
    """Parameter servers among the sidecars, on all nodes."""
    serving = [one for one in framework.sidecars if ("DMLC_ROLE", "server") in one.env]
    return sum(nodes if one.where == "each" else 1 for one in serving)


def _single(start: Start) -> tuple[ProcessSpec, ...]:
    """One process on the head; where the cell asks for more, it works for all of them, by the sidecars of the nodes or by itself."""
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
    """As `ranks`; each waits for its place in MPI before it becomes the program."""
    return tuple(replace(process, command=(*HOLD, *process.command)) for process in _ranks(start))


def _torchrun(start: Start) -> tuple[ProcessSpec, ...]:
    """One torchrun per node, found by number, without a vote: the address is known. The id keeps workers of an earlier start out; the local
    address is given because torchrun asks the resolver otherwise, which may not know it."""
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


_PROCESSES: Final = {"single": _single, "ranks": _ranks, TORCHRUN: _torchrun, MPI: _mpirun}
