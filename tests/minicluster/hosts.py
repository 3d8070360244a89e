"""A host of the cluster: switch it on, run something there, switch it off."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from base.jsonfile import publish_json
from tests.minicluster import processes
from tests.minicluster.network import NETNS
from tests.minicluster.slurmconf import CGROUP_MOUNT
from tests.minicluster.spec import ClusterError, Spec
from tests.minicluster.waiting import last_lines, wait_until

BOOT = Path(__file__).with_name("boot.py")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
JOIN = 'echo $$ > "$0" && exec "$@"'  # into the host's cgroup first, then become the command
KEPT_VARIABLES = ("HOME", "USER", "LOGNAME", "LANG", "TERM")


def switch_on(spec: Spec, host: str) -> None:
    """Start process 1, nobody's child. /tmp is empty after a boot, the local disk keeps what it had."""
    own = spec.node_directory(host)
    shutil.rmtree(own / "tmp", ignore_errors=True)
    for name in ("tmp", "local", "spool"):
        (own / name).mkdir(parents=True, exist_ok=True)
    (own / "tmp").chmod(0o1777)
    (own / "ready").unlink(missing_ok=True)
    spec.cgroup(host).mkdir(parents=True, exist_ok=True)
    boot = {
        "name": host,
        "state": spec.directory,
        "own": str(own),
        "hosts": str(spec.root / "hosts"),
        "gpus": spec.gpus if host in spec.compute_nodes else 0,
        "cgroup": str(spec.cgroup(host)),
        "cgroup_mount": CGROUP_MOUNT,
    }
    publish_json(own / "boot.json", boot)
    argv = ["setsid", "--fork", "nsenter", f"--net={NETNS / spec.netns(host)}"]
    # slave: what this machine mounts later appears on the node, what the node mounts stays there
    argv += ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--propagation", "slave"]
    argv += [sys.executable, "-I", "-S", str(BOOT), str(own / "boot.json")]
    with spec.log(f"boot-{host}").open("ab") as log:
        environment = {"PATH": SYSTEM_PATH}
        subprocess.run(joined(spec, host, argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment, check=False)


def await_ready(spec: Spec, host: str) -> None:
    def ready() -> bool:
        if not processes.cgroup_pids(spec, host):
            raise ClusterError(f"{host} did not boot: {last_lines(spec.log(f'boot-{host}'))}")
        return (spec.node_directory(host) / "ready").exists()

    wait_until(ready, 30.0, f"{host} boots")


def joined(spec: Spec, host: str, argv: list[str]) -> list[str]:
    return ["/bin/sh", "-c", JOIN, str(spec.cgroup(host) / "cgroup.procs"), *argv]


def environment(spec: Spec, extra: dict[str, str] | None = None) -> dict[str, str]:
    """That of a fresh login, whatever the caller's holds."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    path = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
    return {"HOME": "/root", **kept, "PATH": path, "SLURM_CONF": str(spec.slurm_conf), **(extra or {})}


def exec_argv(spec: Spec, host: str, argv: list[str], directory: str) -> list[str]:
    """`directory` where the host has it, else /. The command hears SIGTERM when the nsenter that started it goes."""
    first = processes.init_of(spec, spec.known(host))
    if first is None:
        raise ClusterError(f"{host} is off: `heal {host}` switches it on")
    if not os.path.isdir(f"/proc/{first}/root{directory}"):
        directory = "/"
    enter = ["nsenter", f"--target={first}", "--mount", "--uts", "--ipc", "--net", "--pid", f"--wdns={directory}"]
    return joined(spec, host, [*enter, "setpriv", "--pdeathsig", "TERM", *argv])
