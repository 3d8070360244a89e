"""A host of the cluster: switch it on, run something there, switch it off."""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from base.jsonfile import publish_json
from tests.minicluster import gpus, processes, texts
from tests.minicluster.network import NETNS
from tests.minicluster.slurmconf import CGROUP_MOUNT
from tests.minicluster.spec import USER, ClusterError, Spec
from tests.minicluster.waiting import last_lines, run, wait_until

BOOT = Path(__file__).with_name("boot.py")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
JOIN = 'for file in $0; do echo $$ > "$file" || exit 1; done; exec "$@"'  # into the host's cgroups first, then become the command
DISK_BYTES = 64 << 30
LOOP = 7  # major number of loop devices
EXT4_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
KEPT_VARIABLES = ("HOME", "USER", "LOGNAME", "LANG", "TERM")


def switch_on(spec: Spec, host: str) -> None:
    """Start process 1, nobody's child. /tmp is empty after a boot, the local disk keeps what it had."""
    own = spec.node_directory(host)
    shutil.rmtree(own / "tmp", ignore_errors=True)
    for name in ("tmp", "local", "spool"):
        (own / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "local"):
        (own / name).chmod(0o1777)
    (own / "ready").unlink(missing_ok=True)
    spec.cgroup(host).mkdir(parents=True, exist_ok=True)
    if host in spec.container_hosts:
        processes.create(spec, host)
        gpus.write(spec, host, own / "stand-ins")
        make_disk(own / "disk.img")
    boot = {
        "name": host,
        "state": spec.directory,
        "own": str(own),
        "hosts": str(spec.root / "hosts"),
        "accounts": str(spec.root / "accounts"),
        "opened": [*([sys.base_prefix, *texts.prefixes(spec)] if spec.for_users or spec.scheduler != "slurm" else []), *spec.opened],
        "gpus": spec.gpus if host in spec.compute_nodes else 0,
        "cgroup": str(spec.cgroup(host)),
        "cgroup_mount": CGROUP_MOUNT,
        "hierarchies": list(processes.hierarchies()) if host in spec.container_hosts else [],
    }
    publish_json(own / "boot.json", boot)
    argv = ["setsid", "--fork", "nsenter", f"--net={NETNS / spec.netns(host)}"]
    # slave: what this machine mounts later appears on the node, what the node mounts stays there
    argv += ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--propagation", "slave"]
    argv += ["--cgroup"] if host in spec.container_hosts else []
    argv += [sys.executable, "-I", "-S", str(BOOT), str(own / "boot.json")]
    with spec.log(f"boot-{host}").open("ab") as log:
        environment = {"PATH": SYSTEM_PATH}
        subprocess.run(joined(spec, host, argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment, check=False)


def make_disk(path: Path) -> None:
    """The local disk of a host with images: a file system in one sparse file, since deleting theirs one by one takes a minute per image."""
    if not path.exists():
        with path.open("wb") as file:
            file.truncate(DISK_BYTES)
        options = ["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1"]
        run(["/usr/sbin/mkfs.ext4", *options, str(path)])


def drop_disk(spec: Spec, host: str) -> None:
    """Before the host ends for good: its disk takes no more writes, so that nothing is written out only to be deleted."""
    first = processes.init_of(spec, host) if host in spec.container_hosts else None
    if first is None:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(f"/proc/{first}/root/local", os.O_RDONLY | os.O_DIRECTORY)
        try:
            if os.major(os.fstat(descriptor).st_dev) == LOOP:  # its own, not this machine's
                fcntl.ioctl(descriptor, EXT4_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)


def await_ready(spec: Spec, host: str) -> None:
    def ready() -> bool:
        if not processes.cgroup_pids(spec, host):
            raise ClusterError(f"{host} did not boot: {last_lines(spec.log(f'boot-{host}'))}")
        return (spec.node_directory(host) / "ready").exists()

    wait_until(ready, 30.0, f"{host} boots")


def joined(spec: Spec, host: str, argv: list[str]) -> list[str]:
    own = processes.directories(spec, host).values() if host in spec.container_hosts else [spec.cgroup(host)]
    return ["/bin/sh", "-c", JOIN, " ".join(str(path / "cgroup.procs") for path in own), *argv]


def environment(spec: Spec, extra: dict[str, str] | None = None, user: str | None = None) -> dict[str, str]:
    """That of a fresh login, whatever the caller's holds; `user`: USER, None for root."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    if user is not None:
        kept |= {"HOME": str(spec.home), "USER": user, "LOGNAME": user, "SHELL": "/bin/bash"}
    own = [f"{prefix}/{part}" for prefix in texts.prefixes(spec) for part in ("bin", "sbin")]
    path = ":".join([str(Path(sys.executable).parent), *([f"{gpus.ON_NODE}/bin"] if spec.docker else []), *own, SYSTEM_PATH])
    return {"HOME": "/root", **kept, "PATH": path, **texts.environ(spec), **(extra or {})}


def exec_argv(spec: Spec, host: str, argv: list[str], directory: str, user: str | None = None) -> list[str]:
    """`directory` where the host has it, else /. The command hears SIGTERM when the nsenter that started it goes."""
    if user not in (None, USER):
        raise ClusterError(f"user: found {user!r}; valid: {USER}, or none for root")
    first = processes.init_of(spec, spec.known(host))
    if first is None:
        raise ClusterError(f"{host} is off: `heal {host}` switches it on")
    if not os.path.isdir(f"/proc/{first}/root{directory}"):
        directory = "/"
    enter = ["nsenter", f"--target={first}", "--mount", "--uts", "--ipc", "--net", "--pid", f"--wdns={directory}"]
    enter += ["--cgroup"] if host in spec.container_hosts else []
    become = [] if user is None else [f"--reuid={user}", f"--regid={user}", "--init-groups"]
    return joined(spec, host, [*enter, "setpriv", *become, "--pdeathsig", "TERM", *argv])
