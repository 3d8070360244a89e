"""Compute speed-up and efficiency of cells relative to the study's baseline. Weak or strong scaling is derived here, never typed.

A *series* is all cells of one source that agree in every key but nodes, gpus_per_node and the batch. The baseline names keys, such as
`nodes: 1`; the cells of the series that match them are its baseline cells (a baseline that also names a key of the series, such as
`comm_hook: none`, is looked for in the series that differs in that key only; one that names a key of `optimizer`, `steps` or `epochs` takes
it out of the series, so that a learning rate may be scaled with the nodes). Where all cells of a series match, the smallest are the
baseline. A cell's partner is the baseline cell

- with the same batch per process: then the comparison is *weak* scaling, or
- with the same global batch: then it is *strong* scaling;
- of several, the one with the same nodes and gpus_per_node where the baseline leaves them open, then the one with the fewest processes.

A cell that is its own partner is a baseline: S = E = 1, by definition and not by measurement. A cell may have both partners. Then both
comparisons are made, and the *primary* one, which the tables show, is the kind that most cells of the series have (weak if equal): a
study over batch_size comes out as weak, one over global_batch_size as strong. If the baseline itself names the batch, the partner is
whatever matches it.

S = X / X0 with X = samples/s, or tokens/s of a program with that unit, a rate over wall time; E = S / (N / N0), N = processes. No partner,
or one of the two not measured: no number but a reason.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from workflow.report.cells import RISING, SUPERLINEAR, CellResult, Estimate, mixed_marks_of, ratio
from workflow.study.cell import NO_EXCHANGE, Cell, Keys
from workflow.study.series import baseline_mismatch, baselines, comparable, is_named, joined_series, keys_text

BATCH: Final = {"weak": "batch_size", "strong": "global_batch_size"}
Line = tuple[str, str, str, int]
Candidates = dict[tuple[str, int] | None, list[CellResult]]
OPEN: Final = ("nodes", "gpus_per_node")


class Comparison(Struct, frozen=True, kw_only=True):
    """A cell against its partner, which is the cell itself for a baseline; None: no partner.

    `scaling`: weak or strong; for a baseline, or without partner, what its series is; `other` where both batches differ from the partner's.
    """

    cell: CellResult
    scaling: str
    partner: CellResult | None
    speedup: Estimate | None = None
    efficiency: Estimate | None = None
    reason: str | None = None
    primary: bool = True
    marks: frozenset[str] = frozenset()

    @property
    def is_baseline(self) -> bool:
        return self.partner is self.cell

    @property
    def line(self) -> Line:
        """Return what is drawn as one line and read as one row: source, series, kind of scaling, and the batch that it holds constant."""
        kind = "strong" if self.scaling == "strong" else "weak"
        return self.cell.source, self.cell.series, kind, self.cell.size(BATCH[kind])


def compare_to_baseline(cells: Sequence[CellResult], baseline: Keys) -> tuple[Comparison, ...]:
    """Return all comparisons, in the order of `cells`; exactly one of each cell is primary."""
    names = [_family(cell, baseline) for cell in cells]
    families = _families(cells, names, baseline)
    found = [_partners(cell, families.get(name, {}), baseline) for cell, name in zip(cells, names, strict=True)]
    named: dict[str, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        if is_named(cell.cell, baseline):
            named[cell.source][cell.series] = cell.cell
    whys: dict[str, str] = {}
    votes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for cell, partners in zip(cells, found, strict=True):
        votes[cell.source, cell.series].update(kind for kind in partners if kind in BATCH)
    comparisons = []
    for cell, name, partners in zip(cells, names, found, strict=True):
        vote = votes[cell.source, cell.series]
        preferred = "strong" if vote["strong"] > vote["weak"] else "weak"
        if not partners:
            if name not in whys:
                whys[name] = baseline_mismatch(cell.cell, named[cell.source].values(), baseline)
            comparisons.append(
                Comparison(
                    cell=cell,
                    scaling=preferred,
                    partner=None,
                    reason=_no_partner(cell, name in families, whys[name], baseline),
                    marks=cell.marks,
                )
            )
        chosen = preferred if preferred in partners else next(iter(partners), None)
        for kind, partner in partners.items():
            scaling = preferred if kind == "baseline" else kind
            comparisons.append(_comparison(cell, partner, scaling, primary=kind == chosen))
    return tuple(_of_baselines(_rising(comparisons)))


def lines_of(comparisons: Sequence[Comparison], *, also_hidden: bool = False) -> dict[Line, tuple[Comparison, ...]]:
    """Return the comparisons of each line, in the order of the study.

    A line is there for its primary comparisons (`also_hidden`: for any), and has all that belong to it: cells whose primary comparison is
    another, and the baseline of the same series, which may begin several. A baseline without any has a line of its own; one of another
    series stands on the lines of that series only.
    """
    found: dict[Line, dict[str, Comparison]] = {}
    bases = {id(one.cell): one for one in comparisons if one.is_baseline}
    for comparison in comparisons:
        if comparison.primary or also_hidden:
            found.setdefault(comparison.line, {})
    for comparison in comparisons:
        if comparison.line in found and not comparison.is_baseline:
            partner = bases.get(id(comparison.partner)) if comparison.scaling in BATCH else None
            if partner is not None and partner.cell.series == comparison.cell.series:
                found[comparison.line].setdefault(partner.cell.cell_id, partner)
            found[comparison.line].setdefault(comparison.cell.cell_id, comparison)
    begun = {id(one) for line in found.values() for one in line.values()}
    for base in bases.values():
        if id(base) not in begun:
            found[base.line].setdefault(base.cell.cell_id, base)
    order = {id(comparison): index for index, comparison in enumerate(comparisons)}
    return {line: tuple(sorted(those.values(), key=lambda one: order[id(one)])) for line, those in found.items() if those}


def has_several_baselines(line: Iterable[Comparison]) -> bool:
    """Return True if the numbers of one line are measured against different cells."""
    return len({id(one.partner) for one in line if one.partner is not None}) > 1


def regrouped(cells: Sequence[CellResult], baseline: Keys) -> tuple[CellResult, ...]:
    """Return the cells with one series also for those that differ in what the baseline names and changes with the size."""
    names = joined_series([cell.cell for cell in cells], baseline)
    return tuple(cell if name is None else replace(cell, series=name) for cell, name in zip(cells, names, strict=True))


def _family(cell: CellResult, baseline: Keys) -> str:
    """Return a text that is equal for cells that may be partners: source, and series keys that the baseline does not name."""
    return json.dumps([cell.source, comparable(cell.cell, baseline)], sort_keys=True)


def _families(cells: Iterable[CellResult], names: Iterable[str], baseline: Keys) -> dict[str, Candidates]:
    """Return the baseline cells of each family: all under None, and those of each batch under its key and size."""
    families: dict[str, list[CellResult]] = defaultdict(list)
    for cell, name in zip(cells, names, strict=True):
        families[name].append(cell)
    found: dict[str, Candidates] = {}
    for name, family in families.items():
        for base in baselines(family, baseline, lambda cell: cell.cell):
            for group in (None, *((key, base.size(key)) for key in BATCH.values())):
                found.setdefault(name, {}).setdefault(group, []).append(base)
    return found


def _partners(cell: CellResult, candidates: Candidates, baseline: Keys) -> dict[str, CellResult]:
    alike = {kind: candidates.get((key, cell.size(key)), []) for kind, key in BATCH.items()}
    if any(cell is candidate for candidate in alike["weak"]):
        return {"baseline": cell}
    if set(BATCH.values()) & baseline.keys():
        partner = _closest(cell, candidates.get(None, []), baseline)
        kinds = [kind for kind, key in BATCH.items() if partner and partner.size(key) == cell.size(key)] or ["other"]
        return {kinds[0]: partner} if partner else {}
    found = {kind: _closest(cell, those, baseline) for kind, those in alike.items()}
    return {kind: partner for kind, partner in found.items() if partner}


def _closest(cell: CellResult, candidates: Sequence[CellResult], baseline: Keys) -> CellResult | None:
    open_keys = [key for key in OPEN if key not in baseline]

    def distance(candidate: CellResult) -> tuple[int, int, str]:
        return sum(candidate.size(key) != cell.size(key) for key in open_keys), candidate.num_processes, candidate.cell_id

    return min(candidates, key=distance, default=None)


def _no_partner(cell: CellResult, has_baseline: bool, why: str, baseline: Keys) -> str:
    if cell.reason:
        return cell.reason
    if cell.cell.comm_hook == NO_EXCHANGE:
        return "gradients were not exchanged (comm_hook: noop): a diagnosis, and no result"
    if not baseline:
        return "the study names no baseline"
    wanted = keys_text(baseline)
    if has_baseline:
        return f"no baseline ({wanted}) has batch {cell.cell.batch_size} per process, or {cell.cell.global_batch_size} in all"
    return f"no cell of this series is a baseline ({wanted})" + (f"; {why}" if why else "")


def _comparison(cell: CellResult, partner: CellResult, scaling: str, *, primary: bool) -> Comparison:
    if cell.rate is None:
        return Comparison(cell=cell, scaling=scaling, partner=partner, primary=primary, reason=cell.reason)
    marks = cell.marks | mixed_marks(cell, partner)
    if partner.rate is None:
        reason = f"baseline {partner.cell_id}: {partner.reason}"
        return Comparison(cell=cell, scaling=scaling, partner=partner, primary=primary, reason=reason, marks=marks)
    if partner is cell:
        speedup = efficiency = Estimate(value=1.0, n=cell.rate.n)
    else:
        speedup = ratio(cell.rate, partner.rate)
        efficiency = speedup.scaled(partner.num_processes / cell.num_processes)
        marks |= {"batch"} if scaling == "other" else set()
        marks |= {"lengths"} if _other_lengths(cell.cell, partner.cell) else set()
        if cell.num_processes > partner.num_processes and (efficiency.least() or 0.0) > SUPERLINEAR:
            marks |= {"superlinear"}
    return Comparison(cell=cell, scaling=scaling, partner=partner, primary=primary, speedup=speedup, efficiency=efficiency, marks=marks)


def _other_lengths(cell: Cell, other: Cell) -> bool:
    """Return True if sequences in buckets come in another mix of lengths: what fills no global batch of a bucket is dropped."""
    several = len(cell.dataset_spec.get("buckets") or ()) > 1
    return several and cell.global_batch_size != other.global_batch_size


def mixed_marks(cell: CellResult, partner: CellResult) -> set[str]:
    """Return marks of what must not differ; settings of arithmetic may where the cells ask for different arithmetic."""
    own, others = cell.distinct, partner.distinct
    found = mixed_marks_of(own if own is others else {name: own[name] | others[name] for name in own})
    return found if cell.cell.precision == partner.cell.precision else found - {"settings"}


def _rising(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Mark comparisons whose rate per process exceeds that of a cell with fewer processes on the same line by the factor RISING.

    The cells' own rates are compared: they share the baseline, whose error would only be in the way.
    """
    rising = set()
    for line in lines_of(comparisons, also_hidden=True).values():
        fewer: list[CellResult] = []
        for _, group in groupby(sorted((one for one in line if one.efficiency), key=_processes), key=_processes):
            alike = list(group)
            rising |= {id(one) for one in alike if fewer and _rises(_same_per_node(one.cell, fewer), one.cell)}
            fewer = [one.cell for one in alike]
    return [replace(one, marks=one.marks | {"rising"}) if id(one) in rising else one for one in comparisons]


def _of_baselines(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Mark the comparisons where the baseline carries a mark that the cell does not, of its runs or of its place on a line."""
    bases = {id(one.cell): one.cell.marks | one.marks for one in comparisons if one.is_baseline}
    marked = []
    for one in comparisons:
        doubtful = one.cell.rate is not None and one.partner is not None and bases[id(one.partner)] - one.marks
        marked.append(replace(one, marks=one.marks | {"baseline"}) if doubtful else one)
    return marked


def _processes(comparison: Comparison) -> int:
    return comparison.cell.num_processes


def _same_per_node(cell: CellResult, others: Sequence[CellResult]) -> CellResult:
    return next((other for other in others if other.cell.gpus_per_node == cell.cell.gpus_per_node), others[0])


def _rises(before: CellResult, after: CellResult) -> bool:
    """Test by the lower end of the interval (one-sided 95 %); False without an interval."""
    if before.rate is None or after.rate is None:
        return False
    of_a_process = ratio(after.rate, before.rate).scaled(before.num_processes / after.num_processes)
    return (of_a_process.least() or 0.0) > RISING
