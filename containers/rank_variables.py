"""Set the environment variables by which ranks find each other (`env` of framework.yaml, `env_from` of a program), and fill the
placeholders of a command. Pure.

MASTER_ADDR and MASTER_PORT are the one place where something listens for all: Paddle's store, which rank 0 opens, the scheduler of a
parameter server, Horovod's rendezvous. TensorFlow and Paddle want a port for each rank besides.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Rendering = Literal["tf_config", "paddle", "dmlc", "horovod"]
Launcher = Literal["single", "torchrun", "ranks", "mpirun"]
SidecarEnds = Literal["stopped", "with-ranks"]
"""How a sidecar ends: we stop it when the ranks have ended, or it ends by itself, with 0, when they do."""
MPI_SIDECARS: Final = frozenset({"mpirun", "orted"})
"""Names of what the launcher mpirun starts beside the ranks."""
PORT_PER_RANK: Final = ("tf_config", "paddle")
"""The renderings that name an address of every rank."""


@dataclass(frozen=True, kw_only=True)
class RankPosition:
    """The place of a rank among all ranks, and the addresses of its node and of the first rank."""

    rank: int
    local_rank: int
    local_size: int
    node_rank: int
    nodes: int
    address: str
    """The address of its node."""
    interface: str | None
    """The network interface between the nodes, if it is known."""
    device: str
    master: tuple[str, int]
    endpoints: tuple[tuple[str, int], ...]
    """An address of every rank; empty where no rendering of PORT_PER_RANK is asked."""
    servers: int
    """Parameter servers among the sidecars, on all nodes."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.local_size


def host_port(place: tuple[str, int]) -> str:
    """Return `10.0.0.1:61001`, and of an IPv6 address `[fd00::1]:61001`."""
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tf_config(place: RankPosition) -> dict[str, str]:
    workers = [host_port(endpoint) for endpoint in place.endpoints]
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": place.rank}})}


def _paddle(place: RankPosition) -> dict[str, str]:
    endpoints = [host_port(endpoint) for endpoint in place.endpoints]
    return {
        "PADDLE_TRAINER_ID": str(place.rank),
        "PADDLE_TRAINERS_NUM": str(place.world_size),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[place.rank],
        "PADDLE_MASTER": host_port(place.master),
        **({"PADDLE_DISTRI_BACKEND": "gloo"} if place.device == "cpu" else {}),
    }


def _dmlc_of_all(place: RankPosition) -> dict[str, str]:
    """Return what scheduler, servers and workers have alike. DMLC_NODE_HOST, because on a host with several addresses each would choose one
    by itself.
    """
    return {
        "DMLC_PS_ROOT_URI": place.master[0],
        "DMLC_PS_ROOT_PORT": str(place.master[1]),
        "DMLC_NUM_WORKER": str(place.world_size),
        "DMLC_NUM_SERVER": str(place.servers),
        "DMLC_NODE_HOST": place.address,
    }


def _horovod(place: RankPosition) -> dict[str, str]:
    """Return the variables of horovodrun's gloo controller, whose rendezvous a sidecar on the head must serve."""
    return {
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.world_size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.node_rank),
        "HOROVOD_CROSS_SIZE": str(place.nodes),
        "HOROVOD_HOSTNAME": place.address,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": place.master[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(place.master[1]),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **({} if place.interface is None else {"HOROVOD_GLOO_IFACE": place.interface}),
    }


RENDERINGS: Final[Mapping[str, Callable[[RankPosition], dict[str, str]]]] = {
    "tf_config": _tf_config,
    "paddle": _paddle,
    "dmlc": lambda place: {**_dmlc_of_all(place), "DMLC_ROLE": "worker"},
    "horovod": _horovod,
}
_ANY: Final = RankPosition(
    rank=0, local_rank=0, local_size=1, node_rank=0, nodes=1, address="", interface="lo", device="cpu", master=("", 1),
    endpoints=(("", 1),), servers=0,
)  # fmt: skip
VARIABLES: Final = {name: frozenset(function(_ANY)) for name, function in RENDERINGS.items()}
"""Rendering -> the variables that it sets, which nobody else sets."""

FOR_SIDECARS: Final = {"dmlc": frozenset(_dmlc_of_all(_ANY))}
"""Rendering -> those of them that sidecars get."""


def rendered_for_sidecars(asked: tuple[str, ...], place: RankPosition) -> dict[str, str]:
    """Return the variables that are no rank's own. `place`: of any rank of the sidecar's node."""
    return _dmlc_of_all(place) if "dmlc" in asked else {}


def rendered(asked: tuple[str, ...], place: RankPosition) -> dict[str, str]:
    """Return the variables of all renderings that are asked."""
    return {name: value for rendering in asked for name, value in RENDERINGS[rendering](place).items()}


# Placeholders in the words of a command: `{python}`, `{data}`, `{args.width}`. Each word is gone through once, so that a value which holds
# braces itself is not filled in again.


PLACES: Final = ("python", "folder", "data", "out", "cell")
"""What the engine knows: the interpreter, the program's folder, the staged dataset, the directory to write to, cell.json."""
CELL_PLACES: Final = ("model", "dataset", "mode", "precision", "batch_size", "global_batch_size", "nodes", "gpus_per_node", "seed")
"""Keys of a cell that a command can name."""
NETWORK_PLACES: Final = ("head", "address")
"""The address of the head, and that of the node."""
PORT: Final = "port."
"""`{port.NAME}`: a port of the head, reserved for the run; the same number on all nodes."""
STEPS_PLACEHOLDER: Final = "steps.total"
"""How many steps a cell asks for, which a command can name too."""
_NAME: Final = re.compile(r"\{([a-z_]+(?:\.[a-z0-9_]+)?)\}")
_PORT_PLACEHOLDER: Final = re.compile(r"\{port\.[^{}]*\}")


def names_in(word: str) -> list[str]:
    """Return the names of the placeholders in `word`; other braces, as those of JSON, are text."""
    return _NAME.findall(word)


def wrong_ports_in(word: str) -> list[str]:
    """Find what looks like `{port.NAME}` in `word`, and holds no NAME that a port can have: it would stay as it stands."""
    return [found for found in _PORT_PLACEHOLDER.findall(word) if not _NAME.fullmatch(found)]


def ports_in(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the ports that these words ask for, in order."""
    return tuple(sorted({name.removeprefix(PORT) for word in words for name in names_in(word) if name.startswith(PORT)}))


def fill(word: str, values: Mapping[str, str]) -> str:
    """Return `word` with the placeholders that `values` knows filled in; others stay."""
    return _NAME.sub(lambda match: values.get(match[1], match[0]), word)
