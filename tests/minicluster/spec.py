"""What a cluster is: its numbers and every name derived from them. The names are the ids by which `down` finds what `up` made."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from base.jsonfile import publish_json, read_json

NAME = re.compile(r"[a-z][a-z0-9]{0,19}")
SUBNET = "10.77"  # every cluster's: its network ends at its own switch namespace, so clusters cannot meet
FREEZERS = (Path("/sys/fs/cgroup/freezer"), Path("/run/slipway-minicluster/.freezer"))  # this machine's, or one that we mount
USER, USER_ID = "tester", 4321  # the ordinary user of every cluster, known inside of its hosts only
MAX_DIRECTORY = 70  # the path of a socket has at most 107 characters


class ClusterError(Exception):
    """The cluster cannot do what was asked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    name: str
    directory: str
    scheduler: str = "slurm"
    nodes: int = 4
    gpus: int = 8
    cores: int = 8
    memory_mb: int = 4000
    storage_mbit: float | None = None
    link_mbit: float | None = None
    kill_wait: int = 5
    slurmd_timeout: int = 60
    docker: bool = False
    opened: tuple[str, ...] = ()
    """Directories below one that is root's alone, which USER may enter all the same."""
    for_users: bool = False
    """Whether USER can run our programs with Slurm too; root's own directory has nothing but our Python on the hosts then."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ClusterError(f"name: found {self.name!r}; valid: a letter, then at most 19 letters and digits, all small")
        if not self.directory.startswith("/") or len(self.directory) > MAX_DIRECTORY or re.search(r"[\s#%,\[\]]", self.directory):
            raise ClusterError(
                f"dir: found {self.directory!r}; valid: an absolute path of at most {MAX_DIRECTORY} characters without blanks, # % , [ ]"
            )
        for field, low, high in (("nodes", 1, 200), ("gpus", 0, 64), ("cores", 1, 256), ("memory_mb", 100, 10**7)):
            if not low <= getattr(self, field) <= high:
                raise ClusterError(f"{field}: found {getattr(self, field)}; valid: {low} to {high}")
        for field in ("storage_mbit", "link_mbit"):
            check_mbit(field, getattr(self, field))

    @property
    def root(self) -> Path:
        return Path(self.directory)

    @property
    def compute_nodes(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))

    @property
    def hosts(self) -> tuple[str, ...]:
        """All that have an address. `storage` is there only where the storage is slow."""
        return ("login", *(("storage",) if self.storage_mbit is not None else ()), *self.compute_nodes)

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    @property
    def home(self) -> Path:
        """Of USER, on shared storage."""
        return self.shared / "home" / USER

    @property
    def site_file(self) -> Path:
        return self.root / "site.yaml"

    @property
    def slurm_conf(self) -> Path:
        return self.root / "slurm" / "slurm.conf"

    @property
    def sge_root(self) -> Path:
        return self.root / "sge"

    @property
    def munge_socket(self) -> Path:
        return self.root / "munge" / "munge.socket"

    def log(self, daemon: str) -> Path:
        return self.root / "log" / f"{daemon}.log"

    def node_directory(self, host: str) -> Path:
        return self.root / "nodes" / host

    def netns(self, host: str) -> str:
        return f"{self.name}-{host}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        return tuple(self.netns(host) for host in ("switch", *self.hosts))

    @property
    def cgroup_name(self) -> str:
        return f"slipway-minicluster-{self.name}"

    @property
    def container_hosts(self) -> tuple[str, ...]:
        """Those with a dockerd: the compute nodes, and the login node, where images are looked up and archived."""
        return ("login", *self.compute_nodes) if self.docker else ()

    def cgroup(self, host: str) -> Path:
        """All processes of the host are below it; the steps of its slurmd deeper."""
        return freezer() / self.cgroup_name / host

    def address(self, host: str) -> str:
        last = {"login": 1, "storage": 2}.get(host)
        return f"{SUBNET}.0.{last}" if last else f"{SUBNET}.1.{int(host[1:])}"

    def known(self, host: str) -> str:
        if host not in self.hosts:
            raise ClusterError(f"node: found {host!r}; valid: {', '.join(self.hosts)}")
        return host


def freezer() -> Path:
    """cgroup v1, which Slurm's plugin wants. Machines with cgroup v2 have it unmounted."""
    return FREEZERS[0] if (FREEZERS[0] / "release_agent").exists() else FREEZERS[1]


def check_mbit(field: str, value: float | None) -> None:
    if value is not None and not 0.1 <= value <= 1e5:
        raise ClusterError(f"{field}: found {value:g}; valid: 0.1 to 100000 Mbit/s")


def write_state(spec: Spec) -> None:
    publish_json(spec.root / "state.json", dataclasses.asdict(spec))


def read_state(directory: Path) -> Spec:
    value: dict[str, Any] = read_json(directory / "state.json", ClusterError)
    try:
        return Spec(**{**value, "opened": tuple(value["opened"])})
    except (KeyError, TypeError) as error:
        raise ClusterError(f"{directory}/state.json is not of this version: {error}") from error
