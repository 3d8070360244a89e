"""Which of the GPUs that show here this process was granted, and why: pure, so that every scheduler's case is a line of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from base.errors import AllocationError
from base.units import counted
from cluster.detection import scheduler_of
from cluster.gpus.claims import KNOWN, Claim, claims_of, said_count
from cluster.gpus.listing import Gpu, Place, bus_key, in_pci_order, short_bus

Rule = Literal["nothing", "uuids", "hidden", "numbers", "all"]
NOWHERE: Final = Place()
REMEDY: Final = (
    "have the scheduler hand out the GPUs (gpus_per_node in the site file), take whole nodes (share_nodes: false), or name them by NV_GPU"
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """`gpus` in PCI order, and the rule that found them: `nothing` was granted; `uuids` were said; the others are `hidden`; `numbers` were
    said; `all`, because nothing restricts. With `refusal`, there are none. `steps` tell how it was decided, for people."""

    gpus: tuple[Gpu, ...]
    rule: Rule | None
    refusal: str | None
    steps: tuple[str, ...]


def granted_gpus(
    gpus: Sequence[Gpu], environ: Mapping[str, str], granted: int | None, *, everything: bool = False, place: Place = NOWHERE
) -> tuple[Gpu, ...]:
    """The GPUs of `decide`. Raises AllocationError where it refuses."""
    return accepted(decide(gpus, environ, granted, everything=everything, place=place)).gpus


def decide(
    gpus: Sequence[Gpu], environ: Mapping[str, str], granted: int | None, *, everything: bool = False, place: Place = NOWHERE
) -> Decision:
    """Of the GPUs and MIG instances that show here, those that were granted: `granted` many, None where the environment has to tell.

    UUIDs count as they stand. Where as many show as were granted, the scheduler hides the others, and all are ours, whatever the numbers
    say. Where more show, numbers count in PCI order; MIG instances have none. Where nothing says which, and several show, it is refused,
    unless `everything` says that the node is ours alone.
    """
    case = _Case(in_pci_order(gpus), environ, granted, everything, place)
    try:
        rule, found = case.decide()
    except AllocationError as error:
        return Decision(gpus=(), rule=None, refusal=str(error), steps=(*case.steps, f"refused: {error}"))
    found = tuple(gpu for gpu in case.gpus if gpu in found) + tuple(gpu for gpu in found if gpu not in case.gpus)
    shown = ", ".join(_name(gpu) for gpu in found) or "none"
    return Decision(gpus=found, rule=rule, refusal=None, steps=(*case.steps, f"granted: {counted(len(found), 'GPU')}: {shown}"))


def accepted(decision: Decision) -> Decision:
    """The decision. Raises AllocationError where it is a refusal."""
    if decision.refusal is not None:
        raise AllocationError(decision.refusal)
    return decision


class _Case:
    """One decision while it is made; `steps` grow on the way."""

    def __init__(self, gpus: tuple[Gpu, ...], environ: Mapping[str, str], granted: int | None, everything: bool, place: Place) -> None:
        self.gpus, self.place, self.everything = gpus, place, everything
        self.scheduler = scheduler_of(environ)
        self.steps = [f"scheduler: {self.scheduler or 'none, this is not a job'}"]
        self.claims = claims_of(environ, self.scheduler, place)
        self.steps += [claim.describe() for claim in self.claims] or [f"no variable names GPUs: looked for {', '.join(KNOWN)}"]
        self.is_told = granted is not None or self.scheduler is not None
        """Whether somebody hands GPUs out here, and so may hide the others."""
        self.said = granted if granted is not None else said_count(environ, self.scheduler)
        self.count = self._count()
        self.steps.append(f"seen here: {counted(len(gpus), 'GPU')}{': ' if gpus else ''}{', '.join(_name(gpu) for gpu in gpus)}")
        hidden = len(place.node_buses) - len({gpu.bus_id for gpu in gpus})
        if hidden > 0:
            self.steps.append(f"the driver knows {counted(len(place.node_buses), 'GPU')} of this node: {hidden} hidden from this process")

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
        """The rules, best first. Raises AllocationError."""
        named = next((claim for claim in self.claims if claim.kind == "uuids"), None)
        if self.said == 0 or (self.said is None and self.claims and all(claim.kind == "nothing" for claim in self.claims)):
            return self._by("nothing", "no GPU was granted", ())
        if named is not None:
            return self._by("uuids", f"{named.variable} holds UUIDs: they are taken as they stand", self._by_uuids(named))
        if self.count is not None and self.is_told and self.count == len(self.gpus):
            return self._by("hidden", f"as many are seen as were granted: they are ours, others are hidden{self._agreement()}", self.gpus)
        if self.count is not None or self.claims:
            return self._by("numbers", *self._by_numbers())
        if len(self.gpus) <= 1 or self.everything:
            alone = "the node is ours alone" if len(self.gpus) > 1 else "there are not several"
            return self._by("all", f"nothing says which, and {alone}: all that are seen", self.gpus)
        raise AllocationError(
            f"nothing says which of the {len(self.gpus)} GPUs that nvidia-smi shows were granted to this job "
            f"({', '.join(_name(gpu) for gpu in self.gpus)}): {REMEDY}"
        )

    def _by(self, rule: Rule, why: str, found: tuple[Gpu, ...]) -> tuple[Rule, tuple[Gpu, ...]]:
        self.steps.append(f"rule: {why}")
        return rule, found

    def _agreement(self) -> str:
        """Whether the scheduler's numbers would have led to the same GPUs: it tells whether they count in PCI order at this site."""
        order = sorted(self.place.node_buses, key=bus_key)
        for claim in self.claims:
            if claim.kind == "numbers" and claim.scope == "node" and all(int(name) < len(order) for name in claim.names):
                told = {bus_key(order[int(name)]) for name in claim.names}
                same = told == {bus_key(gpu.bus_id) for gpu in self.gpus if gpu.bus_id}
                return f"; {claim.variable}, in PCI order of the whole node, {'names the same' if same else 'would name others'}"
        return ""

    def _by_uuids(self, claim: Claim) -> tuple[Gpu, ...]:
        """CUDA takes the beginning of a UUID for the whole; a MIG instance that cannot be listed here is taken at its word."""
        instances = any(gpu.is_instance for gpu in self.gpus)
        found = []
        for name in claim.names:
            fitting = [gpu for gpu in self.gpus if gpu.uuid == name] or [gpu for gpu in self.gpus if gpu.uuid.startswith(name)]
            if len(fitting) > 1:
                raise AllocationError(f"{claim.variable} names {name!r}, which may be {' or '.join(gpu.uuid for gpu in fitting)}")
            if not fitting and (instances or not name.startswith("MIG-")):
                raise AllocationError(f"{claim.variable} names {name!r}, which is not among {self._all()}")
            found.append(fitting[0] if fitting else Gpu(-1, name, "MIG"))
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
        """The bus ids that the numbers count: the driver's, where some GPUs of the node are hidden and the numbers count them too."""
        seen = tuple(gpu.bus_id for gpu in self.gpus)
        if claim.scope == "seen" or not all(seen) or len(self.place.node_buses) <= len(seen):
            return seen
        buses = sorted(self.place.node_buses, key=bus_key)
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
