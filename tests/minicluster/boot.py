"""Process 1 of a host: makes its mount namespace and host name, says it is ready, then reaps what is orphaned.

Run as a file, with nothing of ours: /tmp and /run are replaced under its feet.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import uuid
from pathlib import Path

MEMORY = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
DEVICES = MEMORY | {"tty": (5, 0), "ptmx": (5, 2), "fuse": (10, 229)}
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


def mount(*arguments: str, keep: tuple[int, ...] = ()) -> None:
    """A path such as /proc/self/fd/3 must reach the kernel as it is: what it names may be hidden by now."""
    subprocess.run(["mount", "--no-canonicalize", *arguments], check=True, pass_fds=keep)


NVIDIA = 195


def make_dev(gpus: int, containers: bool) -> None:
    """A /dev of our own. The GPUs are there to be granted, of no use: null devices, or with containers such as a device cgroup can tell."""
    terminals = os.open("/dev/pts", os.O_PATH)
    mount("-t", "tmpfs", "-o", "mode=755", "none", "/dev")
    os.umask(0)
    cards = {f"nvidia{i}": (NVIDIA, i) if containers else DEVICES["null"] for i in range(gpus)}
    for name, (major, minor) in (DEVICES | cards).items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
    os.umask(0o022)
    for name, target in LINKS.items():
        Path("/dev", name).symlink_to(target)
    Path("/dev/pts").mkdir()
    mount("--bind", f"/proc/self/fd/{terminals}", "/dev/pts", keep=(terminals,))
    os.close(terminals)
    Path("/dev/shm").mkdir(0o1777)
    mount("-t", "tmpfs", "-o", "mode=1777", "none", "/dev/shm")


def make_mounts(spec: dict[str, str]) -> None:
    """The cluster's directory and this checkout stay where they are, also where /tmp or /run above them are replaced."""
    kept = {path: os.open(path, os.O_PATH) for path in (spec["state"], str(Path(__file__).resolve().parents[2]))}
    mount("-t", "proc", "none", "/proc")
    for name in ("tmp", "local"):
        disk = f"{spec['own']}/disk.img"
        source = ["-o", "loop,noatime", disk] if name == "local" and Path(disk).exists() else ["--bind", f"{spec['own']}/{name}"]
        mount(*source, f"/{name}")
        os.chmod(f"/{name}", 0o1777)
        if name == "tmp":
            reappear(kept)
    mount("-t", "tmpfs", "-o", "mode=755", "none", "/run")
    reappear(kept)
    Path("/run/spool").mkdir()
    mount("--bind", f"{spec['own']}/spool", "/run/spool")
    make_etc([Path(spec["hosts"]), *Path(spec["accounts"]).iterdir()])
    make_identity(spec["name"])
    make_whole_proc()
    open_way(spec["opened"])
    for descriptor in kept.values():
        os.close(descriptor)


def make_etc(own: list[Path]) -> None:
    """An /etc with files of our own. They are not bound to their places one by one: where the machine's file is replaced, as useradd
    replaces passwd, the kernel takes away what is mounted over it, here too."""
    upper, work = Path("/run/etc"), Path("/run/etc-work")
    for directory in (upper, work):
        directory.mkdir(0o755)
    for file in own:
        shutil.copy2(file, upper / file.name)
    mount("-t", "overlay", "-o", f"lowerdir=/etc,upperdir={upper},workdir={work}", "none", "/etc")


def make_identity(name: str) -> None:
    """As real machines: another boot id at each start, so that what was noted before is known to be over; a machine's id that stays."""
    ids = {"/proc/sys/kernel/random/boot_id": str(uuid.uuid4()), "/etc/machine-id": uuid.uuid5(uuid.NAMESPACE_DNS, name).hex}
    for number, (path, value) in enumerate(ids.items()):
        if Path(path).exists():  # many containers have no machine-id
            own = Path(f"/run/identity-{number}")
            own.write_text(f"{value}\n")
            mount("--bind", str(own), path)


def make_whole_proc() -> None:
    """A /proc with nothing mounted over any of it: the kernel lets a user namespace mount one only where such a one is seen."""
    whole = Path("/run/whole-proc")
    whole.mkdir()
    mount("-t", "proc", "none", str(whole))


def open_way(prefixes: list[str]) -> None:
    """Our Python, and what else is listed, where everybody may enter: it may lie below root's own directory, which has nothing else on
    this host then."""
    kept = {prefix: os.open(prefix, os.O_PATH) for prefix in prefixes}
    for prefix in prefixes:
        closed = next((parent for parent in reversed(Path(prefix).parents) if not parent.stat().st_mode & stat.S_IXOTH), None)
        if closed is not None:
            mount("-t", "tmpfs", "-o", "mode=755", "none", str(closed))
            reappear(kept)
    for descriptor in kept.values():
        os.close(descriptor)


def reappear(kept: dict[str, int]) -> None:
    """Bind what a mount has hidden to its own path again."""
    for path, descriptor in kept.items():
        if not (Path(path).exists() and os.path.samestat(Path(path).stat(), os.fstat(descriptor))):
            Path(path).mkdir(parents=True, exist_ok=True)
            mount("--bind", f"/proc/self/fd/{descriptor}", path, keep=(descriptor,))


def make_cgroup(mount_point: str, cgroup: int, name: str) -> None:
    """A freezer hierarchy that holds this node only.

    slurmd calls its cgroup slurm_<node name>: two clusters with an n1 would share it, and kill each other's jobs. It asks for a root with
    release_agent, which only the real root has, hence the stand-in.
    """
    base = Path(mount_point) / "freezer"
    base.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", "mode=755", "none", str(base))
    (base / "release_agent").touch()
    for file in ("cgroup.procs", "tasks", "notify_on_release"):
        (base / file).touch()
        mount("--bind", f"/proc/self/fd/{cgroup}/{file}", str(base / file), keep=(cgroup,))
    inner = f"slurm_{name}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(inner, dir_fd=cgroup)
    (base / inner).mkdir()
    mount("--bind", f"/proc/self/fd/{cgroup}/{inner}", str(base / inner), keep=(cgroup,))
    os.close(cgroup)


def make_hierarchies(names: list[str]) -> None:
    """/sys/fs/cgroup of the node's own: our cgroup namespace begins at the node's cgroups."""
    mount("-t", "tmpfs", "-o", "mode=755", "none", "/sys/fs/cgroup")
    for name in names:
        directory = Path("/sys/fs/cgroup", name.removeprefix("name="))
        directory.mkdir()
        mount("-t", "cgroup", "-o", f"none,{name}" if name.startswith("name=") else name, "none", str(directory))


def make_engines(own: str) -> None:
    """Podman's storage on the node's own disk; the stand-ins of NVIDIA's tools, and the directory where CDI files are looked for."""
    stand_ins = ((f"{own}/stand-ins", "/run/minicluster"), (f"{own}/stand-ins/cdi", "/run/cdi"))
    for source, target in (("/local/podman", "/var/lib/containers"), *stand_ins):
        Path(source).mkdir(parents=True, exist_ok=True)
        Path(target).mkdir(parents=True, exist_ok=True)
        mount("--bind", source, target)


def reap() -> None:
    """Until SIGKILL. SIGCHLD is blocked, so that none is missed between waiting and asking."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait({signal.SIGCHLD})


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    os.chdir("/")
    socket.sethostname(spec["name"])
    cgroup = os.open(spec["cgroup"], os.O_PATH)
    make_mounts(spec)
    make_dev(spec["gpus"], bool(spec["hierarchies"]))
    make_cgroup(spec["cgroup_mount"], cgroup, spec["name"])
    if spec["hierarchies"]:
        make_hierarchies(spec["hierarchies"])
        make_engines(spec["own"])
    Path("/run/lock").mkdir(0o1777)
    Path(spec["own"], "ready").touch()
    reap()


if __name__ == "__main__":
    main()
