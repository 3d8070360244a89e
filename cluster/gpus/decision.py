"""Decide which of the visible GPUs this process was granted, and why: pure, so that every scheduler's case is a line of a table."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from base.errors import AllocationError
from base.humanize import counted
from base.sanitize import ascii_int
from cluster.detection import scheduler_of
from cluster.gpus.listing import Gpu, bus_key, in_pci_order, parse_instances, short_bus

# What the environment says about a job's GPUs, scheduler by scheduler, and by what its numbers count. Pure.


CUDA: Final = "CUDA_VISIBLE_DEVICES"
NOTHING: Final = frozenset({"-1", "NoDevFiles", "none", "void"})
"""How a variable says that there are none, beside being empty: CUDA, Slurm, the container runtime."""
KNOWN: Final = (
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_ON_NODE",
    CUDA,
    "SGE_HGR_<complex>",
)
_GPU_COMPLEX = re.compile(r"SGE_HGR_\w*(gpu|cuda|nvidia)\w*", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:gpu|cuda)?_?(\d+)", re.IGNORECASE)
_UUID = re.compile(r"(GPU|MIG)-\S+")

Scope = Literal["node", "seen"]


@dataclass(frozen=True)
class Claim:
    """One variable that names GPUs. `scope`: whether its numbers count all GPUs of the node, or those that show here."""

    variable: str
    value: str
    scope: Scope
    names: tuple[str, ...]

    @property
    def kind(self) -> Literal["nothing", "uuids", "numbers", "other"]:
        if not self.names:
            return "nothing"
        if all(_UUID.fullmatch(name) for name in self.names):
            return "uuids"
        return "numbers" if all(ascii_int(name) is not None for name in self.names) else "other"

    def describe(self) -> str:
        kind = {
            "nothing": "no GPUs",
            "uuids": "UUIDs, which mean the same to everybody",
            "numbers": f"numbers that count {'all GPUs of the node' if self.scope == 'node' else 'the GPUs seen here'} in PCI order",
            "other": "neither UUIDs nor numbers: not understood",
        }[self.kind]
        return f"{self.variable}={self.value!r}: {kind}"


def names_in(value: str) -> tuple[str, ...]:
    """Split a list at commas or blanks, and keep each name once. OpenPBS may leave its commas behind backslashes."""
    names = tuple(dict.fromkeys(name for name in re.split(r"[\\,\s]+", value) if name))
    return () if names and names[0] in NOTHING else names


def claims_of(environ: Mapping[str, str], scheduler: str | None) -> tuple[Claim, ...]:
    """Return the claims of a job, the most trusted first: a list of the whole node before one of the visible GPUs."""
    pattern = rf"{CUDA}\d*" if scheduler == "lsf" else CUDA  # LSF has a numbered one for each further task of the node
    visible = sorted((name for name in environ if re.fullmatch(pattern, name)), key=lambda name: (len(name), name))
    value = ",".join(environ[name] for name in visible if environ[name])
    seen = (Claim("+".join(visible), value, "seen", names_in(value)),) if visible else ()
    return (*_of_node(environ, scheduler, has_none=bool(visible) and not names_in(value)), *seen)


def _of_node(environ: Mapping[str, str], scheduler: str | None, *, has_none: bool) -> Iterator[Claim]:
    """Yield the lists that count all GPUs of the node. `has_none`: no GPU is visible to this process."""
    if scheduler == "slurm":
        of_job = ("SLURM_JOB_GPUS",) if environ.get("SLURM_NODEID") == "0" and not has_none else ()  # of the first node only
        names = [name for name in ("SLURM_STEP_GPUS", *of_job) if environ.get(name)]
        yield from (Claim(name, environ[name], "node", names_in(environ[name])) for name in names)
    elif scheduler == "sge":  # the site chooses the name; the numbers may be `gpu0`
        names = sorted(name for name in environ if _GPU_COMPLEX.fullmatch(name) and environ[name])
        yield from (Claim(name, environ[name], "node", tuple(map(_plain, names_in(environ[name])))) for name in names)


def _plain(name: str) -> str:
    found = _NUMBERED.fullmatch(name)
    return found[1] if found else name


Rule = Literal["nothing", "uuids", "hidden", "numbers", "all"]
REMEDY: Final = (
    f"have the scheduler hand out the GPUs (gpus_per_node in the site file), take whole nodes (share_nodes: false), or name them by {CUDA}"
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The granted `gpus` in PCI order, and the rule that found them: `nothing` was granted; `uuids` were said; the others are `hidden`;
    `numbers` were said; `all`, because nothing restricts. With `refusal`, there are none. `steps` tell how it was decided, for people."""

    gpus: tuple[Gpu, ...]
    rule: Rule | None
    refusal: str | None
    steps: tuple[str, ...]


def granted_gpus(
    gpus: Sequence[Gpu], environ: Mapping[str, str], *, everything: bool = False, node_buses: Sequence[str] = ()
) -> tuple[Gpu, ...]:
    """Return the GPUs of `decide`. Raises AllocationError if it refuses."""
    return or_raise(decide(gpus, environ, everything=everything, node_buses=node_buses)).gpus


def decide(gpus: Sequence[Gpu], environ: Mapping[str, str], *, everything: bool = False, node_buses: Sequence[str] = ()) -> Decision:
    """Select the granted ones of the visible GPUs and MIG instances.

    UUIDs count as they are. If as many GPUs are visible as were granted, the scheduler hides the others, and all are ours, whatever the
    numbers say. If more are visible, numbers count in PCI order; MIG instances have none. If nothing tells which ones, and several are
    visible, it is refused, unless `everything` says that the node is ours alone.
    """
    case = _Case(in_pci_order(gpus), environ, everything, node_buses)
    try:
        rule, found = case.decide()
    except AllocationError as error:
        return Decision(gpus=(), rule=None, refusal=str(error), steps=(*case.steps, f"refused: {error}"))
    found = tuple(gpu for gpu in case.gpus if gpu in found) + tuple(gpu for gpu in found if gpu not in case.gpus)
    shown = ", ".join(_name(gpu) for gpu in found) or "none"
    return Decision(gpus=found, rule=rule, refusal=None, steps=(*case.steps, f"granted: {counted(len(found), 'GPU')}: {shown}"))


def or_raise(decision: Decision) -> Decision:
    """Return the decision. Raises AllocationError if it is a refusal."""
    if decision.refusal is not None:
        raise AllocationError(decision.refusal)
    return decision


class _Case:
    def __init__(self, gpus: tuple[Gpu, ...], environ: Mapping[str, str], everything: bool, node_buses: Sequence[str]) -> None:
        self.gpus, self.node_buses, self.everything = gpus, node_buses, everything
        self.scheduler = scheduler_of(environ)
        self.steps = [f"scheduler: {self.scheduler or 'none, this is not a job'}"]
        self.claims = claims_of(environ, self.scheduler)
        self.steps += [claim.describe() for claim in self.claims] or [f"no variable names GPUs: looked for {', '.join(KNOWN)}"]
        self.is_told = self.scheduler is not None
        """True if somebody hands GPUs out here, and so may hide the others."""
        counted_by_slurm = len(names_in(environ.get("SLURM_STEP_GPUS", ""))) or ascii_int(environ.get("SLURM_GPUS_ON_NODE", ""))
        self.said = counted_by_slurm if self.scheduler == "slurm" else None
        self.count = self._count()
        self.steps.append(f"seen here: {counted(len(gpus), 'GPU')}{': ' if gpus else ''}{', '.join(_name(gpu) for gpu in gpus)}")
        hidden = len(node_buses) - len({gpu.bus_id for gpu in gpus})
        if hidden > 0:
            self.steps.append(f"the driver knows {counted(len(node_buses), 'GPU')} of this node: {hidden} hidden from this process")

    def _count(self) -> int | None:
        if self.said is not None:
            self.steps.append(f"granted: {counted(self.said, 'GPU')}, says the scheduler")
            return self.said
        named = next((claim for claim in self.claims if claim.kind in ("uuids", "numbers")), None)
        if named is None:
            return None
        self.steps.append(f"granted: {counted(len(named.names), 'GPU')}, so many {named.variable} names")
        return len(named.names)

    def decide(self) -> tuple[Rule, tuple[Gpu, ...]]:
        """Apply the rules, best first. Raises AllocationError."""
        named = next((claim for claim in self.claims if claim.kind == "uuids"), None)
        if self.said == 0 or (self.said is None and self.claims and all(claim.kind == "nothing" for claim in self.claims)):
            return self._chosen("nothing", "no GPU was granted", ())
        if named is not None:
            return self._chosen("uuids", f"{named.variable} holds UUIDs: they are taken as they stand", self._by_uuids(named))
        if self.count is not None and self.is_told and self.count == len(self.gpus):
            return self._chosen("hidden", "as many are seen as were granted: they are ours, others are hidden", self.gpus)
        if self.count is not None or self.claims:
            return self._chosen("numbers", *self._by_numbers())
        if len(self.gpus) <= 1 or self.everything:
            alone = "the node is ours alone" if len(self.gpus) > 1 else "there are not several"
            return self._chosen("all", f"nothing says which, and {alone}: all that are seen", self.gpus)
        raise AllocationError(
            f"nothing says which of the {len(self.gpus)} GPUs that nvidia-smi shows were granted to this job "
            f"({', '.join(_name(gpu) for gpu in self.gpus)}): {REMEDY}"
        )

    def _chosen(self, rule: Rule, why: str, found: tuple[Gpu, ...]) -> tuple[Rule, tuple[Gpu, ...]]:
        self.steps.append(f"rule: {why}")
        return rule, found

    def _by_uuids(self, claim: Claim) -> tuple[Gpu, ...]:
        """Match UUIDs. A MIG instance that cannot be listed here counts as it is."""
        instances = any(gpu.is_instance for gpu in self.gpus)
        found = []
        for name in claim.names:
            fitting = next((gpu for gpu in self.gpus if gpu.uuid == name), None)
            if fitting is None and (instances or not name.startswith("MIG-")):
                raise AllocationError(f"{claim.variable} names {name!r}, which is not among {self._all()}")
            found.append(fitting or Gpu(-1, name, "MIG"))
        return tuple(found)

    def _by_numbers(self) -> tuple[str, tuple[Gpu, ...]]:
        count = self.count
        fitting = [claim for claim in self.claims if claim.kind == "numbers" and len(claim.names) == count]
        if self.count is not None and len(self.gpus) < self.count and self.is_told:
            raise AllocationError(f"{self.count} GPUs were granted, nvidia-smi shows fewer: {self._all()}; one may be lost: dmesg, Xid")
        if not fitting:
            heard = "; ".join(claim.describe() for claim in self.claims) or f"none of {', '.join(KNOWN)} is set"
            asked = f"{count} GPUs were granted" if count is not None else "GPUs were granted"
            raise AllocationError(f"{asked}, nvidia-smi shows {len(self.gpus)}, and nothing says which: {heard}; seen: {self._all()}")
        claim = fitting[0]
        if any(gpu.is_instance for gpu in self.gpus):
            raise AllocationError(
                f"{claim.variable}={claim.value} are numbers, and GPUs of this node are divided by MIG: schedulers count instances, the "
                f"driver counts GPUs, only UUIDs say which; have the scheduler hide the others (ConstrainDevices), or name UUIDs; "
                f"seen: {self._all()}"
            )
        order = self._order(claim)
        more = "more are seen than were granted: " if self.is_told else ""
        return f"{more}{claim.variable} says which, in PCI order", tuple(self._at(claim, name, order) for name in claim.names)

    def _order(self, claim: Claim) -> tuple[str, ...]:
        """Return the bus ids that the numbers count: the driver's if some GPUs are hidden and the numbers count them too."""
        seen = tuple(gpu.bus_id for gpu in self.gpus)
        if claim.scope == "seen" or not all(seen) or len(self.node_buses) <= len(seen):
            return seen
        buses = sorted(self.node_buses, key=bus_key)
        return tuple(buses) if {bus_key(bus) for bus in seen} <= {bus_key(bus) for bus in buses} else seen

    def _at(self, claim: Claim, name: str, order: tuple[str, ...]) -> Gpu:
        number = int(name)
        if number >= len(order):
            raise AllocationError(f"{claim.variable} names {name!r}, which is not among {self._all()}")
        if len(order) == len(self.gpus):
            found: Gpu | None = self.gpus[number]
        else:
            found = next((gpu for gpu in self.gpus if bus_key(gpu.bus_id) == bus_key(order[number])), None)
        if found is None:
            raise AllocationError(
                f"{claim.variable} names {name!r}, which is {short_bus(order[number])} and hidden from this process; seen: {self._all()}"
            )
        self.steps.append(f"{claim.variable}: {name} is {_name(found)}")
        return found

    def _all(self) -> str:
        return ", ".join(f"{place}={_name(gpu)}" for place, gpu in enumerate(self.gpus)) or "no GPUs"


def _name(gpu: Gpu) -> str:
    return f"{gpu.uuid} at {short_bus(gpu.bus_id)}" if gpu.bus_id else gpu.uuid


# Whether a container sees the GPUs it was given: pure, for the check after its start.


def listed_uuids(text: str) -> tuple[str, ...]:
    """Parse the output of `nvidia-smi -L` into the usable UUIDs: for a GPU that is divided, its MIG instances."""
    return tuple(uuid for gpu, instances in parse_instances(text).items() for uuid in ([each for _, each in instances] or [gpu]))


def mismatch(expected: Sequence[str], seen: Sequence[str]) -> str | None:
    """Compare two lists of GPUs in any order. Returns None for the same ones, or the missing ones and those never granted."""
    missing = [uuid for uuid in dict.fromkeys(expected) if uuid not in seen]
    extra = [uuid for uuid in dict.fromkeys(seen) if uuid not in expected]
    if not missing and not extra:
        return None
    said = [f"{len(missing)} missing ({', '.join(missing)})"] if missing else []
    said += [f"{len(extra)} that were not granted ({', '.join(extra)})"] if extra else []
    return f"the container sees other GPUs than it was given: of {len(set(expected))} granted it shows {len(set(seen))}: {', '.join(said)}"


def not_granted(granted: Sequence[str], seen: Sequence[str]) -> str | None:
    """Describe the visible GPUs that were not granted, and what keeps the ranks to theirs. Returns None if there are none."""
    extra = [uuid for uuid in dict.fromkeys(seen) if uuid not in granted]
    if not extra:
        return None
    return (
        f"the container shows {len(extra)} GPUs beyond the {len(set(granted))} granted ({', '.join(extra)}): only "
        "CUDA_VISIBLE_DEVICES, by UUID, keeps the ranks to theirs; the scheduler can constrain a job's devices (docs/how-to/containers.md)"
    )
