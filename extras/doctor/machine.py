"""Check a machine: limits, network interfaces and GPUs."""

import os
import re
import resource
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.errors import SlipwayError
from base.humanize import counted, format_size
from base.sanitize import ascii_int
from base.system import machine_number, machine_text
from cluster.addresses import ipv4_addresses, source_address
from cluster.gpus.listing import query_fields
from cluster.limits import GPU_USE_S
from extras.doctor.types import Context, Finding, Level

# Limits that the shell or the batch system sets: open files, locked memory, shared memory.


FILES: Final = 65536
SOME_FILES: Final = 8192
SHARED_MEMORY: Final = 1 << 30
Limit = tuple[int, int]
"""A soft and a hard limit; -1: none."""


def judge_limits(files: Limit, locked: Limit, infiniband: bool) -> Iterator[Finding]:
    """Judge the limits of a process. `infiniband`: the machine has such devices, which need locked memory."""
    soft, hard = files
    if 0 <= soft < FILES:
        enough = not 0 <= hard < FILES
        text = f"open files: {soft}{'' if enough else f', hard limit {hard}'}; many ranks and loaders want {FILES}"
        advice = f'setup: ["ulimit -n {FILES}"] in the site file' if enough else "ask for a higher hard limit (nofile)"
        yield Finding("limits", "note" if soft >= (1024 if enough else SOME_FILES) else "warning", text, advice)
    soft, hard = locked
    if soft >= 0 and infiniband:
        advice = "ask for memlock unlimited, for the scheduler's daemon on the nodes too (LimitMEMLOCK of its service)"
        advice = 'setup: ["ulimit -l unlimited"] in the site file' if hard < 0 else advice
        yield Finding("limits", "warning", f"locked memory: {format_size(soft)}; InfiniBand (RDMA) needs it unlimited", advice)


def judge_shared_memory(size_bytes: int | None, free_bytes: int) -> Finding:
    """Judge /dev/shm, through which the ranks of a node and their loaders exchange data; None where it is missing."""
    if size_bytes is None:
        text = "/dev/shm is missing: loaders with workers and NCCL fail with a bus error"
        return Finding("limits", "error", text, "ask for it to be mounted")
    if free_bytes < SHARED_MEMORY:
        text = f"/dev/shm has {format_size(free_bytes)} of {format_size(size_bytes)} free: without it a bus error ends loaders and NCCL"
        return Finding("limits", "warning", text, "ask for half of the memory; in a container --ipc=host or --shm-size; `ls -l /dev/shm`")
    return Finding("limits", "ok", f"/dev/shm has {format_size(size_bytes)}")


def check_limits(_context: Context) -> Iterator[Finding]:
    """Check the limits of this process, and /dev/shm. Our own umask is 077, or 027 with `shared: group`, whatever the shell says."""
    found = list(
        judge_limits(
            resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_MEMLOCK), Path("/dev/infiniband").is_dir()
        )
    )
    yield from found or [Finding("limits", "ok", "open files and locked memory are enough")]
    shared = Path("/dev/shm")  # noqa: S108 - the file system is looked at, nothing is written
    if not shared.is_mount():
        yield judge_shared_memory(None, 0)
        return
    status = os.statvfs(shared)
    yield judge_shared_memory(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


# Network interfaces: which one the ranks should use.


INFINIBAND: Final = 32
LOOPBACK: Final = 772
VIRTUAL: Final = re.compile(r"docker|virbr|veth|br-|cni|cali|flannel|tun|tap|podman|lxc|lxd|vnet|dummy|wg|tailscale")


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface that is up. `speed_mbit` is None where the kernel does not know it."""

    name: str
    address: str
    mtu: int
    speed_mbit: int | None = None
    infiniband: bool = False

    def describe(self) -> str:
        """Describe the interface, such as `ib0 10.1.0.7, InfiniBand, 100 Gbit/s, MTU 4092`."""
        speed = f", {self.speed_mbit / 1000:g} Gbit/s" if self.speed_mbit else ""
        return f"{self.name} {self.address}{', InfiniBand' if self.infiniband else ''}{speed}, MTU {self.mtu}"


def read_interfaces(root: Path = Path("/sys/class/net")) -> tuple[Interface, ...]:
    """Return the interfaces that are up, have an IPv4 address, and lead out of this machine."""
    found = []
    addresses = ipv4_addresses()
    for directory in sorted(root.iterdir()):
        kind, address, state = machine_number(directory / "type"), addresses.get(directory.name), machine_text(directory / "operstate")
        if kind != LOOPBACK and not VIRTUAL.match(directory.name) and address and state in ("up", "unknown"):
            mtu, speed = machine_number(directory / "mtu") or 0, machine_number(directory / "speed") or None
            found.append(Interface(name=directory.name, address=address, mtu=mtu, speed_mbit=speed, infiniband=kind == INFINIBAND))
    return tuple(found)


def recommended(interfaces: Sequence[Interface], towards: str | None) -> Interface | None:
    """Choose InfiniBand first, then the fastest, then the one with the address `towards`, which leads to the other nodes."""
    return max(interfaces, key=lambda one: (one.infiniband, one.speed_mbit or 0, one.address == towards), default=None)


def check_network(context: Context) -> Iterator[Finding]:
    """Check the interfaces of this machine."""
    other = next((node for node in context.nodes if node != context.hostname), None)
    towards = source_address(other) if other else None
    yield from judge_interfaces(read_interfaces(), context.site.network_interface, towards, context.place == "node")


def judge_interfaces(interfaces: Sequence[Interface], chosen: str | None, towards: str | None, on_node: bool) -> Iterator[Finding]:
    """Judge the interfaces of a machine. `chosen`: of the site file; `towards`: our address on the way to another node."""
    all_of_them = "; ".join(one.describe() for one in interfaces)
    best = recommended(interfaces, towards)
    if best is None:
        yield Finding("network", "warning" if on_node else "note", "no network interface with an IPv4 address is up: one node only")
        return
    if chosen is not None:
        own = next((one for one in interfaces if one.name == chosen), None)
        if own is None:
            text = f"network_interface {chosen!r} of the site file is not up here; there: {all_of_them}"
            advice = (
                "the name that it has on every compute node" if on_node else "login nodes often have others: check inside an allocation"
            )
            yield Finding("network", "error" if on_node else "note", text, advice)
            return
        best = own
        yield Finding("network", "ok", f"the site's interface {own.describe()}")
    else:
        yield Finding("network", "ok", f"interfaces: {all_of_them}")
        if len(interfaces) > 1 and on_node:
            text = f"{len(interfaces)} interfaces, and the site file chooses none; best by kind and speed: {best.name}"
            advice = f"network_interface: {best.name} in the site file; it becomes NCCL_SOCKET_IFNAME={best.name} and GLOO_SOCKET_IFNAME"
            yield Finding("network", "note", text, advice)


# GPUs as nvidia-smi shows them: how many, which driver, MIG, who else uses them.


FIELDS: Final = {"uuid": "uuid", "model": "name", "driver": "driver_version", "mig": "mig.mode.current", "used": "memory.used"}
"""What is asked of each GPU, with the driver's names."""
MUCH_MIB: Final = 600
"""What a driver and a display may hold; more is somebody's program."""


def check_gpus(context: Context) -> Iterator[Finding]:
    """Check the GPUs that nvidia-smi shows."""
    try:
        gpus = query_fields(dict(FIELDS), GPU_USE_S) if shutil.which("nvidia-smi") is not None else []
    except SlipwayError as error:
        level: Level = "error" if context.runs_here and context.site.device == "cuda" else "warning"
        yield Finding("gpus", level, str(error), "a GPU or its driver hangs, or the driver is not loaded: another node; dmesg, Xid")
        return
    yield from judge_gpus(gpus, context.site.device, context.site.gpus_per_node, context.runs_here)


def judge_gpus(gpus: Sequence[Mapping[str, str]], device: str, gpus_per_node: int | None, runs_here: bool) -> Iterator[Finding]:
    """Compare GPUs with the site file. `runs_here`: this machine is one on which runs are started."""
    if not gpus:
        if not runs_here:
            yield Finding("gpus", "ok", "none on this machine, as usual for a login node")
        elif device == "cpu":
            yield Finding("gpus", "ok", "none; the site file says device: cpu")
        else:
            text = f"no GPU shows here, and the site file says device: cuda{f', gpus_per_node: {gpus_per_node}' if gpus_per_node else ''}"
            yield Finding("gpus", "error", text, "ask for GPUs in this allocation (--gres=gpu:N), or device: cpu in the site file")
        return
    said = ", ".join(f"{count} x {name}" for name, count in Counter(gpu.get("model", "?") for gpu in gpus).items())
    yield Finding("gpus", "ok", f"{said}; driver {', '.join(dict.fromkeys(gpu.get('driver', '?') for gpu in gpus))}")
    if runs_here and device == "cuda" and gpus_per_node is not None and len(gpus) < gpus_per_node:
        text = f"{counted(len(gpus), 'GPU')} here, the site file says gpus_per_node: {gpus_per_node}"
        yield Finding("gpus", "note", text, "inside a job only the granted ones show; otherwise correct the site file")
    if device == "cpu":
        yield Finding("gpus", "note", "the site file says device: cpu: the GPUs are not used", "device: cuda in the site file")
    if any(gpu.get("mig") == "Enabled" for gpu in gpus):
        text = "MIG is on: a GPU here is a slice of one; speeds of slices do not compare with whole GPUs"
        advice = "another queue or constraint, or MIG off; instances are granted by UUID only: `slipway gpus --explain`"
        yield Finding("gpus", "warning", text, advice)
    busy = sum(1 for gpu in gpus if (ascii_int(gpu.get("used", "")) or 0) > MUCH_MIB)
    if busy and runs_here:
        text = f"{busy} of {counted(len(gpus), 'GPU')} hold memory of another program now"
        yield Finding("gpus", "warning", text, "`nvidia-smi` shows whose; foreign_gpu: refuse in the site file keeps off such GPUs")
