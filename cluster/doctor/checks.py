"""Network interfaces: which one the ranks should use, and whether the ports of the rendezvous are out of the kernel's way."""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.command import last_lines, run
from base.errors import SlipwayError
from base.finding import Finding, Level
from base.machine_files import machine_number, machine_text
from base.units import counted, format_size, some
from cluster.addresses import ipv4_addresses, source_address
from cluster.detection import SIGNS
from cluster.limits import GPU_USE_S

NETWORK: Final = "network"
INFINIBAND: Final = 32
LOOPBACK: Final = 772
SMALLEST_MTU: Final = 1280
VIRTUAL: Final = re.compile(r"docker|virbr|veth|br-|cni|cali|flannel|tun|tap|podman|lxc|lxd|vnet|dummy|wg|tailscale")
RDMA_ADVICE: Final = "ranks find InfiniBand by themselves (NCCL_IB_HCA); the interface only carries their first words"


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface that is up. `speed_mbit` None: not said."""

    name: str
    address: str
    mtu: int
    speed_mbit: int | None = None
    infiniband: bool = False

    def describe(self) -> str:
        """Such as `ib0 10.1.0.7, InfiniBand, 100 Gbit/s, MTU 4092`."""
        speed = f", {self.speed_mbit / 1000:g} Gbit/s" if self.speed_mbit else ""
        return f"{self.name} {self.address}{', InfiniBand' if self.infiniband else ''}{speed}, MTU {self.mtu}"


def read_interfaces(root: Path = Path("/sys/class/net")) -> tuple[Interface, ...]:
    """Those that are up, have an IPv4 address, and lead out of this machine."""
    found = []
    addresses = ipv4_addresses()
    for directory in sorted(root.iterdir()):
        kind = machine_number(directory / "type")
        address = addresses.get(directory.name)
        state = machine_text(directory / "operstate")
        if kind != LOOPBACK and not VIRTUAL.match(directory.name) and address and state in ("up", "unknown"):
            found.append(
                Interface(
                    name=directory.name,
                    address=address,
                    mtu=machine_number(directory / "mtu") or 0,
                    speed_mbit=machine_number(directory / "speed") or None,
                    infiniband=kind == INFINIBAND,
                )
            )
    return tuple(found)


def recommended(interfaces: Sequence[Interface], towards: str | None) -> Interface | None:
    """Pure: InfiniBand first, then the fastest, then the one whose address leads to the other nodes; None where there is none."""
    return max(interfaces, key=lambda one: (one.infiniband, one.speed_mbit or 0, one.address == towards), default=None)


def judge_interfaces(interfaces: Sequence[Interface], chosen: str | None, towards: str | None, on_node: bool) -> tuple[Finding, ...]:
    """Pure. `chosen`: network_interface of the site file; `towards`: our address on the way to another node; on a compute node or not."""
    if not interfaces:
        return (Finding(NETWORK, "warning" if on_node else "note", "no network interface with an IPv4 address is up: one node only"),)
    all_of_them = "; ".join(one.describe() for one in interfaces)
    if chosen is not None:
        own = next((one for one in interfaces if one.name == chosen), None)
        if own is None:
            text = f"network_interface {chosen!r} of the site file is not up here; there: {all_of_them}"
            advice = (
                "the name that it has on every compute node" if on_node else "login nodes often have others: check inside an allocation"
            )
            return (Finding(NETWORK, "error" if on_node else "note", text, advice),)
        return (Finding(NETWORK, "ok", f"the site's interface {own.describe()}"), *(_mtu(own) if on_node else ()))
    best = recommended(interfaces, towards)
    assert best is not None
    findings = [Finding(NETWORK, "ok", f"interfaces: {all_of_them}")]
    if len(interfaces) > 1 and on_node:
        text = f"{len(interfaces)} interfaces, and the site file chooses none; best by kind and speed: {best.name}"
        advice = f"network_interface: {best.name} in the site file; it becomes NCCL_SOCKET_IFNAME={best.name} and GLOO_SOCKET_IFNAME"
        findings.append(Finding(NETWORK, "note", text, f"{advice}. {RDMA_ADVICE}" if best.infiniband else advice))
    return (*findings, *(_mtu(best) if on_node else ()))


def judge_ports(ephemeral: tuple[int, int], wanted: tuple[int, int]) -> tuple[Finding, ...]:
    """Pure: the kernel's range for outgoing connections against the ports that the rendezvous takes."""
    said = f"{ephemeral[0]}-{ephemeral[1]}"
    if ephemeral[1] < wanted[0] or ephemeral[0] > wanted[1]:
        return (Finding(NETWORK, "ok", f"ports {wanted[0]}-{wanted[1]} of the rendezvous are above the kernel's own ({said})"),)
    text = f"outgoing connections use the ports {said}, among them those of the rendezvous, {wanted[0]}-{wanted[1]}"
    return (Finding(NETWORK, "note", text, "nothing: the head node binds its port before it tells it; net.ipv4.ip_local_port_range"),)


def check_interfaces(chosen: str | None, other: str | None, on_node: bool, wanted: tuple[int, int]) -> tuple[Finding, ...]:
    """Interfaces and ports of this machine; `other`: the name of another node."""
    towards = source_address(other) if other else None
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return (*judge_interfaces(read_interfaces(), chosen, towards, on_node), *judge_ports((int(low), int(high)), wanted))


def _mtu(interface: Interface) -> tuple[Finding, ...]:
    if interface.mtu < 1500:
        text = f"MTU {interface.mtu} of {interface.name} is smaller than usual (1500): a tunnel, or a cloud's network"
        level: Level = "note" if interface.mtu >= SMALLEST_MTU else "warning"
        return (Finding(NETWORK, level, text, "ask whether this is meant to carry training"),)
    if interface.mtu == 1500 and (interface.speed_mbit or 0) >= 10_000 and not interface.infiniband:
        text = f"MTU 1500 of {interface.name}: at {(interface.speed_mbit or 0) / 1000:g} Gbit/s TCP costs much CPU"
        return (Finding(NETWORK, "note", text, "ask for jumbo frames (MTU 9000) on all nodes and switches"),)
    return ()


# What a site file says of the cluster, as far as it can be compared with what the cluster says of itself.


@dataclass(frozen=True, kw_only=True)
class Asked:
    """None: the site file does not say it."""

    scheduler: str
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    parallel_environment: str | None = None
    device: str = "cpu"
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    memory_per_node_bytes: int | None = None
    walltime_s: float | None = None
    share_nodes: bool = False


# GPUs as nvidia-smi shows them: how many, which driver, MIG, persistence, who else uses them.


GPUS: Final = "gpus"
QUERY: Final = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,mig.mode.current,persistence_mode,memory.used",
    "--format=csv,noheader,nounits",
)
MUCH_MIB: Final = 600
"""What a driver and a display may hold; more is somebody's program."""

Line = Sequence[str]


def parse(text: str) -> list[list[str]]:
    """One line per GPU: name, driver, MIG mode, persistence mode, MiB used."""
    return [words for words in ([word.strip() for word in line.split(",")] for line in text.splitlines()) if len(words) == 5]


def judge(lines: Sequence[Line], device: str, gpus_per_node: int | None, on_node: bool) -> tuple[Finding, ...]:
    """Pure. `on_node`: this machine is one on which runs are started."""
    if not lines:
        return _judge_none(device, gpus_per_node, on_node)
    names = {line[0]: sum(1 for other in lines if other[0] == line[0]) for line in lines}
    said = ", ".join(f"{count} x {name}" for name, count in names.items())
    found = [Finding(GPUS, "ok", f"{said}; driver {', '.join(dict.fromkeys(line[1] for line in lines))}")]
    if on_node and device == "cuda" and gpus_per_node is not None and len(lines) < gpus_per_node:
        text = f"{counted(len(lines), 'GPU')} here, the site file says gpus_per_node: {gpus_per_node}"
        found.append(Finding(GPUS, "note", text, "inside a job only the granted ones show; otherwise correct the site file"))
    if device == "cpu":
        found.append(Finding(GPUS, "note", "the site file says device: cpu: the GPUs are not used", "device: cuda in the site file"))
    if any(line[2] == "Enabled" for line in lines):
        text = "MIG is on: a GPU here is a slice of one; speeds of slices do not compare with whole GPUs"
        found.append(
            Finding(
                GPUS,
                "warning",
                text,
                "another queue or constraint, or MIG off; instances are granted by UUID only: `slipway gpus --explain`",
            )
        )
    if any(line[3] == "Disabled" for line in lines):
        text = "persistence mode is off: the driver is loaded anew for each run, some seconds each"
        found.append(Finding(GPUS, "note", text, "ask for nvidia-persistenced"))
    busy = sum(1 for line in lines if line[4].isdigit() and int(line[4]) > MUCH_MIB)
    if busy and on_node:
        text = f"{busy} of {counted(len(lines), 'GPU')} hold memory of another program now"
        found.append(Finding(GPUS, "warning", text, "`nvidia-smi` shows whose; foreign_gpu: refuse in the site file keeps off such GPUs"))
    return tuple(found)


def check_gpus(device: str, gpus_per_node: int | None, on_node: bool) -> tuple[Finding, ...]:
    """Ask nvidia-smi."""
    if shutil.which(QUERY[0]) is None:
        return judge((), device, gpus_per_node, on_node)
    try:
        result = run(QUERY, timeout_s=GPU_USE_S)
    except SlipwayError as error:
        return (Finding(GPUS, "error" if on_node else "warning", str(error), "a GPU or its driver hangs: another node; dmesg, Xid"),)
    if result.returncode:
        text = f"nvidia-smi ends with {result.returncode}: {last_lines(result.stdout + result.stderr, 1)}"
        return (Finding(GPUS, "error" if on_node and device == "cuda" else "warning", text, "the driver is not loaded, or does not fit"),)
    return judge(parse(result.stdout), device, gpus_per_node, on_node)


def _judge_none(device: str, gpus_per_node: int | None, on_node: bool) -> tuple[Finding, ...]:
    if not on_node:
        return (Finding(GPUS, "ok", "none on this machine, as usual for a login node"),)
    if device == "cpu":
        return (Finding(GPUS, "ok", "none; the site file says device: cpu"),)
    text = f"no GPU shows here, and the site file says device: cuda{f', gpus_per_node: {gpus_per_node}' if gpus_per_node else ''}"
    return (Finding(GPUS, "error", text, "ask for GPUs in this allocation (--gres=gpu:N), or device: cpu in the site file"),)


# Host names: our own, and those of the nodes, both ways. Resolving may hang where a name server is away: callers limit it.


NAME_SERVICE: Final = "names"
MOST_NAMES: Final = 6


def resolve(name: str) -> tuple[str, ...]:
    """The addresses of a name, in the order of the resolver; none where it has none."""
    try:
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
    except OSError:
        return ()


def name_of(address: str) -> str | None:
    """The name of an address; None where it has none."""
    try:
        return socket.gethostbyaddr(address)[0]
    except OSError:
        return None


def judge_own_name(hostname: str, addresses: Sequence[str], alone: bool) -> tuple[Finding, ...]:
    """Pure. `alone`: runs stay on this machine, so that no other needs to reach it."""
    if not addresses:
        text = f"the own name {hostname!r} does not resolve: torchrun and gloo look it up, and wait or fail"
        advice = f"a line for {hostname} in /etc/hosts; Slipway itself uses addresses"
        return (Finding(NAME_SERVICE, "note" if alone else "warning", text, advice),)
    loopback = [address for address in addresses if ipaddress.ip_address(address.partition("%")[0]).is_loopback]
    said = ", ".join(addresses)
    if len(loopback) == len(addresses):
        text = f"the own name {hostname!r} resolves to {said}, out of reach of others: programs that publish it hang (127.0.1.1 trap)"
        advice = f"the network's address for {hostname} in /etc/hosts; Slipway itself gives ranks the address of an interface"
        return (
            Finding(
                NAME_SERVICE, "ok" if alone else "warning", f"{hostname} resolves to {said}" if alone else text, "" if alone else advice
            ),
        )
    if loopback:
        text = f"the own name {hostname!r} resolves to {said}: some programs take {loopback[0]}, which no other machine reaches"
        return (Finding(NAME_SERVICE, "note", text, "nothing: Slipway gives ranks the address of an interface"),)
    return (Finding(NAME_SERVICE, "ok", f"{hostname} resolves to {said}"),)


def judge_nodes(forward: Mapping[str, Sequence[str]], backward: Mapping[str, str | None]) -> tuple[Finding, ...]:
    """Pure: names of nodes with their addresses, and the first address of each with its name."""
    missing = [name for name, addresses in forward.items() if not addresses]
    found = []
    if missing:
        text = f"{some(missing, MOST_NAMES)} of {len(forward)} nodes do not resolve from here"
        advice = "on a login node this does no harm; if it is so on the nodes, the launcher and ssh between them fail"
        found.append(Finding(NAME_SERVICE, "note", text, advice))
    shared = {addresses[0] for addresses in forward.values() if addresses}
    if len(shared) < len(forward) - len(missing):
        text = "several nodes have the same address: " + ", ".join(
            f"{name} {addresses[0]}" for name, addresses in forward.items() if addresses
        )
        found.append(
            Finding(NAME_SERVICE, "warning", text, "correct the name service; network_interface in the site file does not help here")
        )
    other = [
        f"{name} -> {addresses[0]} -> {backward.get(addresses[0]) or 'no name'}"
        for name, addresses in forward.items()
        if addresses and not _same(name, backward.get(addresses[0]))
    ]
    if other:
        text = f"back from the address comes another name: {some(other, MOST_NAMES)}"
        advice = "nothing: Slipway uses addresses; programs that compare host names may wait for ever"
        found.append(Finding(NAME_SERVICE, "note", text, advice))
    if forward and not found:
        found.append(Finding(NAME_SERVICE, "ok", f"{some(list(forward), MOST_NAMES)} resolve, and back"))
    return tuple(found)


def check_own_name(alone: bool) -> tuple[Finding, ...]:
    """Our own host name."""
    hostname = os.uname().nodename
    return judge_own_name(hostname, resolve(hostname), alone)


def check_nodes(names: Sequence[str]) -> tuple[Finding, ...]:
    """The names of nodes, both ways."""
    forward = {name: resolve(name) for name in names}
    return judge_nodes(forward, {addresses[0]: name_of(addresses[0]) for addresses in forward.values() if addresses})


def _same(name: str, other: str | None) -> bool:
    return other is not None and name.partition(".")[0].lower() == other.partition(".")[0].lower()


# What the shell or the batch system leaves us: open files, locked memory, processes, shared memory.


LIMITS: Final = "limits"
FILES: Final = 65536
SOME_FILES: Final = 8192
PROCESSES: Final = 4096
SHARED_MEMORY: Final = 1 << 30
NAMES: Final[Mapping[str, int]] = {
    "files": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "processes": resource.RLIMIT_NPROC,
    "core": resource.RLIMIT_CORE,
    "memory": resource.RLIMIT_AS,
}
Limits = Mapping[str, tuple[int | None, int | None]]
"""Soft and hard limit; None: unlimited."""


def read_limits() -> dict[str, tuple[int | None, int | None]]:
    """Those of this process."""
    return {name: (_value(soft), _value(hard)) for name, (soft, hard) in ((n, resource.getrlimit(k)) for n, k in NAMES.items())}


def judge_limits(limits: Limits, infiniband: bool) -> tuple[Finding, ...]:
    """Pure. `infiniband`: whether the machine has such devices, which need locked memory."""
    found = []
    soft, hard = limits["files"]
    if soft is not None and soft < FILES:
        enough = hard is None or hard >= FILES
        text = f"open files: {soft}{'' if enough else f', hard limit {hard}'}; many ranks and loaders want {FILES}"
        advice = f'setup: ["ulimit -n {FILES}"] in the site file' if enough else "ask for a higher hard limit (nofile)"
        found.append(Finding(LIMITS, "note" if soft >= (1024 if enough else SOME_FILES) else "warning", text, advice))
    soft, hard = limits["memlock"]
    if soft is not None:
        level: Level = "warning" if infiniband else "note"
        text = f"locked memory: {format_size(soft)}; InfiniBand (RDMA) needs it unlimited"
        advice = (
            'setup: ["ulimit -l unlimited"] in the site file'
            if hard is None
            else "ask for memlock unlimited, for the scheduler's daemon on the nodes too (LimitMEMLOCK of its service)"
        )
        found.append(Finding(LIMITS, level, text + ("" if infiniband else ", and there is none here"), advice if infiniband else ""))
    soft, hard = limits["processes"]
    if soft is not None and soft < PROCESSES:
        text = f"processes and threads of this user: {soft}; a node program, ranks and their loaders need more with many GPUs"
        found.append(Finding(LIMITS, "warning", text, f"ulimit -u {PROCESSES} or more"))
    if limits["core"][0] != 0:
        size = "unlimited" if limits["core"][0] is None else format_size(limits["core"][0])
        text = f"core files: {size}; a crash of all ranks writes as many, each as large as a rank's memory"
        found.append(Finding(LIMITS, "note", text, 'setup: ["ulimit -c 0"] in the site file'))
    if limits["memory"][0] is not None:
        text = f"address space: {format_size(limits['memory'][0])}; CUDA and memory-mapped datasets want far more than they use"
        found.append(Finding(LIMITS, "warning", text, "ulimit -v unlimited"))
    return tuple(found) or (Finding(LIMITS, "ok", "open files, locked memory and processes are enough"),)


def judge_shared_memory(size_bytes: int | None, free_bytes: int) -> tuple[Finding, ...]:
    """Pure: /dev/shm, through which the ranks of a node and their loaders exchange data; None where it is missing."""
    if size_bytes is None:
        return (
            Finding(
                LIMITS, "error", "/dev/shm is missing: loaders with workers and NCCL fail with a bus error", "ask for it to be mounted"
            ),
        )
    if size_bytes < SHARED_MEMORY:
        text = f"/dev/shm has {format_size(size_bytes)}: loaders with workers and NCCL end with a bus error when it is full"
        return (Finding(LIMITS, "warning", text, "ask for half of the memory; in a container --ipc=host or --shm-size"),)
    if free_bytes < SHARED_MEMORY:
        text = f"/dev/shm is nearly full: {format_size(free_bytes)} of {format_size(size_bytes)} free"
        return (Finding(LIMITS, "warning", text, "`ls -l /dev/shm`: leftovers of dead jobs?"),)
    return (Finding(LIMITS, "ok", f"/dev/shm has {format_size(size_bytes)}"),)


def check_limits() -> tuple[Finding, ...]:
    """Those of this process, and /dev/shm. Our own umask is 077, or 027 with `shared: group`, whatever the shell says."""
    try:
        status = os.statvfs("/dev/shm")  # noqa: S108 - the file system is looked at, nothing is written
        size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
        shared = judge_shared_memory(size if os.path.ismount("/dev/shm") else None, free)  # noqa: S108
    except FileNotFoundError:
        shared = judge_shared_memory(None, 0)
    return (*judge_limits(read_limits(), Path("/dev/infiniband").is_dir()), *shared)


def _value(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


# Which scheduler is here, by its commands, and whether the site file says the same.


SCHEDULER: Final = "scheduler"


def find_scheduler(said: str | None = None) -> str:
    """One of SIGNS, or `local` where none of their commands is on PATH. Of several, the one that the site says."""
    names = [name for name, signs in SIGNS.items() if all(map(shutil.which, signs.commands))]
    return said if said is not None and said in names else next(iter(names), "local")


def version_line(scheduler: str) -> str:
    """The first line that the scheduler's command says of its version; empty where it says nothing."""
    try:
        result = run(SIGNS[scheduler].version, timeout_s=10.0)
    except SlipwayError:
        return ""
    return last_lines("\n".join(f"{result.stdout}\n{result.stderr}".split("\n")[:1]), 1).strip()


def judge_choice(said: str, found: str, version: str, known: frozenset[str]) -> tuple[Finding, ...]:
    """Pure: the site's scheduler against the one that is here; `known` are those that this version of Slipway can use."""
    here = f"{found} ({version})" if version else found
    if said == found:
        none = "no scheduler is here; the site says local: runs use this machine"
        findings = [Finding(SCHEDULER, "ok", none if said == "local" else f"the commands of {here} are here, as the site says")]
    elif said == "local" and not version:
        text = f"the commands of {found} are installed, but say nothing (no configuration of a cluster is here)"
        findings = [Finding(SCHEDULER, "ok", f"{text}; the site says local: runs use this machine")]
    elif said == "local":
        advice = "`slipway doctor --write-site NAME` writes a site file for this cluster"
        findings = [Finding(SCHEDULER, "note", f"{here} is here, but the site says scheduler: local: runs use this machine only", advice)]
    else:
        needed = ", ".join(SIGNS[said].commands)
        text = f"the site says scheduler: {said}, but its commands ({needed}) are not on PATH here; found: {here}"
        findings = [Finding(SCHEDULER, "error", text, "run this on a login node of that cluster, load its module, or correct `scheduler`")]
    if said not in known:
        text = f"scheduler {said} is not supported by this version of Slipway; supported: {', '.join(sorted(known))}"
        findings.append(Finding(SCHEDULER, "error", text, "choose another site"))
    return tuple(findings)


def check_choice(said: str, known: frozenset[str]) -> tuple[Finding, ...]:
    """Look for a scheduler's commands and compare with the site."""
    found = find_scheduler(said)
    return judge_choice(said, found, version_line(found) if found != "local" else "", known)
