"""List the GPUs of this node by nvidia-smi and the driver: parsers, and the few calls that ask."""

import logging
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from base.errors import AllocationError, SlipwayError
from base.process import describe, run
from base.sanitize import ascii_int, printable, text
from cluster import processes
from cluster.limits import GPU_LIST_S, GPU_USE_S
from cluster.types import GpuFault, OtherUse

QUERY: Final = ("nvidia-smi", "--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
LIST: Final = ("nvidia-smi", "-L")
"""The only listing that names MIG instances; older drivers have no query for them."""
NO_DEVICES: Final = "No devices"
"""How nvidia-smi begins where the driver is there and every GPU is hidden from this process, or none is built in."""
DRIVER: Final = Path("/proc/driver/nvidia/gpus")
"""A directory per GPU of the node, by bus id: device cgroups do not hide them here."""

_BUS = re.compile(r"(?:([0-9A-Fa-f]+):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
_UUID = re.compile(r"GPU-[!-~]{1,100}")
_GPU_LINE = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)\s]+)\)\s*")
_MIG_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)\s*")


class Gpu(NamedTuple):
    """One GPU of a machine, or one MIG instance of it. `number` is NVML's index of the GPU, good for showing only."""

    number: int
    uuid: str
    model: str
    bus_id: str = ""

    @property
    def is_instance(self) -> bool:
        """Return True for a MIG instance, which has a UUID and no number."""
        return self.uuid.startswith("MIG-")


# -- pure


def bus_key(bus_id: str) -> tuple[int, int, int, int]:
    """Parse a bus id into domain, bus, device and function. The domain has four digits or eight. Raises ValueError."""
    found = _BUS.fullmatch(bus_id.strip())
    if found is None:
        raise ValueError(f"{bus_id!r} is no PCI bus id")
    domain, *rest = (int(part or "0", 16) for part in found.groups())
    return domain, rest[0], rest[1], rest[2]


def short_bus(bus_id: str) -> str:
    """Format a bus id as `07:00.0`, with the domain if it is not 0."""
    domain, bus, device, function = bus_key(bus_id)
    return f"{f'{domain:04X}:' if domain else ''}{bus:02X}:{device:02X}.{function}"


def in_pci_order(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Sort GPUs by bus id, which is what schedulers count by. MIG instances of a GPU keep their order."""
    return tuple(sorted(gpus, key=lambda gpu: (bus_key(gpu.bus_id) if gpu.bus_id else (0, 0, 0, 0), gpu.number)))


def parse_gpus(answer: str) -> tuple[Gpu, ...]:
    """Parse the output of `QUERY`. Raises AllocationError for a line that cannot be read."""
    found = []
    for line in answer.splitlines():
        words = [word.strip() for word in line.split(",", 3)]
        number = ascii_int(words[0])
        if len(words) != 4 or number is None or not _UUID.fullmatch(words[1]) or not _BUS.fullmatch(words[2]):
            raise AllocationError(
                f"nvidia-smi answered {line[:200]!r}, expected `index, GPU-uuid, bus id, name`: a GPU of this node may be lost; "
                f"check `{' '.join(QUERY)}` by hand, and dmesg for Xid"
            )
        found.append(Gpu(number, words[1], text(words[3], 200), words[2]))
    return tuple(found)


def parse_instances(text: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """Parse the output of `LIST`: UUID of each GPU -> (profile, UUID) of its MIG instances."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    gpu = ""
    for line in text.splitlines():
        if match := _GPU_LINE.fullmatch(line):
            gpu = match[1]
            found[gpu] = ()
        elif gpu and (match := _MIG_LINE.fullmatch(line)):
            found[gpu] = (*found[gpu], (match[1], match[2]))
    return found


def with_instances(gpus: Iterable[Gpu], listed: Mapping[str, Sequence[tuple[str, str]]]) -> tuple[Gpu, ...]:
    """Replace each GPU that is divided by its MIG instances, in PCI order."""
    return tuple(
        unit
        for gpu in in_pci_order(gpus)
        for unit in (
            [Gpu(gpu.number, uuid, f"{gpu.model} MIG {profile}", gpu.bus_id) for profile, uuid in listed.get(gpu.uuid, ())] or [gpu]
        )
    )


def split_gpus(gpus: Sequence[Gpu], nodes: int, per_node: int) -> tuple[tuple[Gpu, ...], ...]:
    """Divide GPUs into `nodes` groups of `per_node`. Raises AllocationError if there are too few."""
    if len(gpus) < nodes * per_node:
        seen = ", ".join(gpu.uuid for gpu in gpus) or "none"
        raise AllocationError(
            f"{nodes} nodes x {per_node} GPUs were asked of this machine, which shows {len(gpus)}: {seen}; "
            f"use fewer, or `device: cpu` in the site file"
        )
    return tuple(tuple(gpus[node * per_node : (node + 1) * per_node]) for node in range(nodes))


# -- asking


def query_gpus() -> tuple[Gpu, ...]:
    """List the visible GPUs and MIG instances in PCI order; empty without nvidia-smi. Raises AllocationError if that fails."""
    if shutil.which(QUERY[0]) is None:
        return ()
    answer = _ask(QUERY)
    return with_instances(parse_gpus(answer), parse_instances(_ask(LIST))) if answer else ()


def node_buses(driver: Path = DRIVER) -> tuple[str, ...]:
    """Return the bus ids of all GPUs of the node, also of hidden ones. Empty where that is not known."""
    names = (entry.name for entry in driver.iterdir() if _BUS.fullmatch(entry.name)) if driver.is_dir() else ()
    return tuple(sorted(names, key=bus_key))


def _ask(argv: Sequence[str]) -> str:
    """Return what nvidia-smi prints; empty if it reports that there are no devices."""
    try:
        result = run(argv, timeout_s=GPU_LIST_S)
    except SlipwayError as error:
        raise AllocationError(f"the GPUs of {os.uname().nodename} cannot be listed, one of them or the driver hangs: {error}") from error
    if (result.stdout + result.stderr).strip().startswith(NO_DEVICES):
        return ""
    if result.returncode:
        said = f"\n{result.stdout.strip()}" if result.stdout.strip() else ""  # nvidia-smi explains failures on standard output
        raise AllocationError(f"the GPUs of {os.uname().nodename} cannot be listed: {describe(result)}{said}")
    return result.stdout


# Who else uses the GPUs that we were granted: processes as nvidia-smi lists them, and what is said of them.
#
# It lists compute programs only, not a display's. A process of another PID namespace does not show, and those on MIG instances stand under
# the UUID of their GPU: nothing is said of either.


logger = logging.getLogger(__name__)

PROCESSES_QUERY: Final = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader")


class App(NamedTuple):
    """One process on one GPU. `used_mib`: None where the driver does not say; `owner`: of `processes.owner_of`."""

    gpu: str
    pid: int
    used_mib: int | None
    name: str
    owner: str | None = None

    @property
    def words(self) -> str:
        memory = f", which holds {self.used_mib} MiB" if self.used_mib is not None else ""
        return f"{self.gpu} is used by process {self.pid} ({self.name}) of {self.owner or 'another user'}{memory}"


def parse_apps(answer: str) -> tuple[App, ...]:
    """Parse the output of `PROCESSES_QUERY`. Lines in brackets, by which old cards report nothing, are skipped. Raises ValueError."""
    found = []
    for line in answer.splitlines():
        words = [word.strip() for word in line.split(",", 3)]
        if not line.strip() or line.strip().startswith(("[", "No running", "No devices")):
            continue
        pid = ascii_int(words[1]) if len(words) == 4 else None
        if pid is None or not words[0].startswith(("GPU-", "MIG-")):
            raise ValueError(f"nvidia-smi answered {line[:200]!r}, expected `GPU-uuid, pid, memory, name`")
        amount = ascii_int(words[2].split()[0]) if words[2] else None
        found.append(App(printable(words[0]), pid, amount, text(words[3], 200)))
    return tuple(found)


def other_use(uuids: Sequence[str], apps: Iterable[App], own_pids: Collection[int]) -> tuple[OtherUse, ...]:
    """Select the processes that are not ours and use a GPU of ours, in the order of the GPUs."""
    others = [app for app in apps if app.pid not in own_pids]
    return tuple(OtherUse(uuid, app.words) for uuid in uuids for app in others if app.gpu == uuid)


def query_other_use(uuids: Sequence[str]) -> tuple[OtherUse, ...]:
    """Query the processes of others on our GPUs. A failure is reported under no GPU: it harms nobody."""
    if not uuids:
        return ()
    try:
        return other_use(uuids, query_apps(), {os.getpid(), *processes.descendants(os.getpid())})
    except (SlipwayError, ValueError) as error:
        logger.debug("nvidia-smi does not list the processes on GPUs", exc_info=True)
        return (OtherUse("", f"whether other processes use the GPUs is not known: {error}"),)


def query_apps(timeout_s: float = GPU_USE_S) -> tuple[App, ...]:
    """Query the compute processes on the visible GPUs. Raises SlipwayError and ValueError."""
    result = run(PROCESSES_QUERY, timeout_s=timeout_s)
    if result.returncode:
        raise SlipwayError(describe(result))
    return tuple(app._replace(owner=processes.owner_of(app.pid)) for app in parse_apps(result.stdout))


# What the driver knows to be wrong with GPUs, before anything runs on them: errors of memory, held-down clocks.


ECC: Final = "ecc.errors.uncorrected.volatile.total"
THROTTLE: Final = "clocks_throttle_reasons.active"
RENAMED: Final = {THROTTLE: "clocks_event_reasons.active"}
"""The names that fields have since driver 535."""
FIELDS: Final = ("uuid", ECC, "retired_pages.pending", "remapped_rows.pending", "remapped_rows.failure", THROTTLE)
"""Fields of `nvidia-smi --help-query-gpu`. Of the last five a driver may not know one: it says so, and is asked for the others."""
YES: Final = {
    "retired_pages.pending": "memory pages wait to be retired, which a reset of the GPU does",
    "remapped_rows.pending": "rows of its memory wait to be remapped, which a reset of the GPU does",
    "remapped_rows.failure": "a row of its memory could not be remapped: the GPU is to be replaced",
}
HELD_DOWN: Final = {0x08: "a slow-down by its hardware", 0x40: "heat (slow-down by its hardware)", 0x80: "the power supply (power brake)"}
"""Bits of what holds a clock down while nothing runs; limits of software, and an idle clock, are no fault."""
_UNKNOWN_FIELD: Final = re.compile(r'Field "([a-z_.]+)" is not a valid field')


def parse_fields(answer: str, fields: Iterable[str]) -> list[dict[str, str]]:
    """Parse a GPU per line, by the names of `fields`, of which the first is the UUID. Other lines are skipped."""
    names, found = tuple(fields), []
    for line in answer.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == len(names) and words[0].startswith("GPU-"):
            found.append(dict(zip(names, words, strict=True)))
    return found


def query_fields(asked: dict[str, str], timeout_s: float) -> list[dict[str, str]]:
    """Query fields of all GPUs; `asked` has the driver's name of each. Raises SlipwayError.

    A field that the driver does not know gets its newer name in `asked`, or leaves it, so that the next query is answered at once.
    """
    while True:
        result = run(("nvidia-smi", f"--query-gpu={','.join(asked.values())}", "--format=csv,noheader,nounits"), timeout_s=timeout_s)
        unknown = _UNKNOWN_FIELD.search(result.stdout + result.stderr) if result.returncode else None
        field = next((field for field, name in asked.items() if unknown is not None and name == unknown[1]), None)
        if field is None:
            break
        if asked[field] in RENAMED:
            asked[field] = RENAMED[asked[field]]
        else:
            del asked[field]
    found = parse_fields(result.stdout, asked)
    if result.returncode and not found:
        raise SlipwayError(describe(result))
    return found


def faults_of(gpu: Mapping[str, str]) -> Iterable[str]:
    """Yield the faults of one GPU of `parse_fields`. What the driver does not know (`[N/A]`) is no fault."""
    errors = ascii_int(gpu.get(ECC, "")) or 0
    if errors:
        yield f"{errors} uncorrected ECC error{'s' * (errors > 1)} since the driver was loaded"
    for field, words in YES.items():
        if gpu.get(field, "").lower() in ("yes", "1"):
            yield words
    word = gpu.get(THROTTLE, "")
    bits = int(word, 16) if re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", word) else 0
    for bit, what in HELD_DOWN.items():
        if bits & bit:
            yield f"its clock is held down by {what}, before anything runs"


def judge(uuids: Sequence[str], gpus: Iterable[Mapping[str, str]]) -> tuple[GpuFault, ...]:
    """Return the faults of our GPUs, in their order. A GPU that is not listed any more is lost; MIG instances are never listed."""
    known = {gpu["uuid"]: gpu for gpu in gpus}
    found = []
    for uuid in uuids:
        gpu = known.get(uuid)
        if gpu is None:
            if known and uuid.startswith("GPU-"):
                found.append(GpuFault(uuid, f"{uuid} is not listed by nvidia-smi any more: it may be lost (dmesg)"))
        else:
            found += [GpuFault(uuid, f"{uuid}: {what}") for what in faults_of(gpu)]
    return tuple(found)


def query_gpu_faults(uuids: Sequence[str]) -> tuple[GpuFault, ...]:
    """Ask the driver. What cannot be known is said nowhere but in the node's log: it harms nobody."""
    if not uuids:
        return ()
    try:
        return judge(uuids, query_fields({field: field for field in FIELDS}, GPU_USE_S))
    except (SlipwayError, ValueError) as error:
        logger.debug("the health of the GPUs is not known: %s", error)
        return ()
