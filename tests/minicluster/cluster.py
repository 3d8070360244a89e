"""The mini-cluster as an object: up, down, and what can happen to a cluster in between."""

import os
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.minicluster import building, daemons, dockerd, gpus, hosts, network, packages, processes, registry, schedulers
from tests.minicluster.spec import ClusterError, Spec, check_mbit, read_state

DEFAULT_NAME = "slipway"


class Cluster:
    """A cluster that is up. It holds nothing that `down` needs: any process can open it by name."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.name = spec.name
        self.nodes = spec.compute_nodes
        self.shared = spec.shared
        self.site_file = spec.site_file
        self.env = hosts.environment(spec)

    @classmethod
    def up(cls, name: str = DEFAULT_NAME, directory: str | Path | None = None, **numbers: Any) -> "Cluster":
        """Build it and wait until its nodes are idle. What fails leaves nothing behind."""
        packages.check_rights(bool(numbers.get("docker")))
        spec = Spec(name=name, directory=os.path.abspath(directory or default_directory(name)), **numbers)
        packages.ensure(spec)
        building.claim(spec)
        try:
            building.build(spec)
        except BaseException:
            building.remove(spec)
            raise
        return cls(spec)

    @classmethod
    def open(cls, name: str = DEFAULT_NAME) -> "Cluster":
        return cls(read_state(registry.directory_of(name)))

    def argv(self, node: str, argv: list[str], directory: str | Path | None = None, user: str | None = None) -> list[str]:
        """What to run on this machine, with the environment `env`, so that `argv` runs on `node`; as root where no `user` is named."""
        return hosts.exec_argv(self.spec, node, argv, str(directory or Path.cwd()), user)

    def exec(self, node: str, argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """As subprocess.run: captured text unless `options` say otherwise; `env` adds to the node's own environment; `user`: see argv."""
        options = {"check": False, "text": True, "stdin": subprocess.DEVNULL, **options}
        if not {"stdout", "stderr", "capture_output"} & set(options):
            options["capture_output"] = True
        user = options.pop("user", None)
        environment = hosts.environment(self.spec, options.pop("env", None), user)
        if "input" in options:
            del options["stdin"]
        return subprocess.run(self.argv(node, argv, options.pop("cwd", None), user), env=environment, **options)

    def popen(self, node: str, argv: list[str], **options: Any) -> subprocess.Popen[Any]:
        """As subprocess.Popen. terminate() reaches the command; kill() too, as SIGTERM."""
        user = options.pop("user", None)
        environment = hosts.environment(self.spec, options.pop("env", None), user)
        return subprocess.Popen(self.argv(node, argv, options.pop("cwd", None), user), env=environment, **options)

    def processes(self, node: str) -> list[int]:
        """This machine's ids of all processes of `node`."""
        return processes.inside(self.spec, self.spec.known(node))

    def states(self) -> dict[str, str]:
        return schedulers.of(self.spec).node_states(self.spec)

    def kill(self, node: str) -> None:
        """Hard power loss: the link goes first, so that nobody says goodbye."""
        network.set_link(self.spec, self.spec.known(node), up=False)
        processes.kill_all(self.spec, node)

    def cut(self, node: str) -> None:
        """Pull the cable. The processes live on."""
        network.set_link(self.spec, self.spec.known(node), up=False)

    def heal(self, node: str, limit_s: float = building.START_LIMIT_S) -> None:
        """Cable in, switched on, slurmd running, and usable again for the scheduler."""
        spec = self.spec
        network.set_link(spec, spec.known(node), up=True)
        if processes.init_of(spec, node) is None:
            building.switch_on(spec, (node,))
        scheduler = schedulers.of(spec)
        if node == "login":
            scheduler.start_head(spec)
        elif node in spec.compute_nodes:
            scheduler.restart_node(spec, node)
            scheduler.resume(spec, node)
            scheduler.await_usable(spec, (node,), limit_s)

    def ctld(self, what: str) -> None:
        """stop, cont, kill or start what answers the scheduler's commands."""
        scheduler = schedulers.of(self.spec)
        daemons.control(self.spec, "login", what, scheduler.CONTROLLER, lambda: scheduler.start_controller(self.spec))

    def dockerd(self, node: str, what: str) -> None:
        dockerd.control(self.spec, self.spec.known(node), what)

    def gpus(self, node: str) -> tuple[gpus.Card, ...]:
        """The node's GPUs as its nvidia-smi lists them, in this order."""
        return gpus.cards(self.spec, self.spec.known(node))

    def load_image(self, archive: str | Path, *nodes: str, engine: str = "docker") -> None:
        """`docker load` of a file on the nodes, by default all compute nodes; they need not see the file."""
        for node in nodes or self.nodes:
            with Path(archive).open("rb") as file:
                done = self.exec(node, [engine, "load", "--quiet"], stdin=file, timeout=dockerd.LOAD_LIMIT_S)
            if done.returncode:
                raise ClusterError(f"{engine} load of {archive} on {node}: {done.stderr.strip()}")

    def set_bandwidth(self, storage_mbit: float | None = None, link_mbit: float | None = None, node: str | None = None) -> None:
        """Speed of the storage's link, and of the links of all nodes or of one; from now on, also for open connections."""
        spec = self.spec
        check_mbit("storage_mbit", storage_mbit)
        check_mbit("link_mbit", link_mbit)
        if storage_mbit is not None:
            if spec.storage_mbit is None:
                raise ClusterError("its storage is a plain directory: bring it up with --storage-mbit to have a link that can be limited")
            network.limit(spec, "storage", storage_mbit)
        for host in [spec.known(node)] if node else self.nodes:
            if link_mbit is not None:
                network.limit(spec, host, link_mbit)

    def down(self) -> None:
        building.remove(self.spec)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def default_directory(name: str) -> str:
    return f"/tmp/slipway-minicluster-{name}"
