"""Make table j: the bytes that each network reads per second, for 1 to N processes of a node, and whether a measured place gives them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, CellResult
from workflow.report.cost_table import PER_SAMPLE
from workflow.report.shared_columns import cell_table, rows_of, sentence
from workflow.report.table_type import MEGA, Column, Table, numbers, percent, scaled, significant, words

MIN_NODE: Final = 8
"""The table has columns for so many processes of a node, whatever the study had."""
PUBLISHED: Final[Mapping[str, tuple[float, str]]] = {
    "V100": (64 / 0.195, "resnet50_v100.yaml"),
    "A100": (400 / 0.435, "resnet50_a100.yaml"),
    "H100": (400 / 0.224, "resnet50_h100.yaml"),
}
"""The samples per second of ResNet-50 on a GPU, batch over computation time, and the file of dlio_benchmark that has both."""
SOURCE: Final = "dlio_benchmark, with which MLPerf Storage measures (github.com/argonne-lcf/dlio_benchmark at e1919d7)"


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What a place gives of the samples of a dataset, the least of several passes too, and how that was measured, in words."""

    samples_per_s: float
    least_per_s: float
    bytes_per_s: float
    sample_bytes: float
    method: str


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one process reads: samples per second as measured, and the part of a step in which it waited for them."""

    samples_per_s: float
    sample_bytes: float
    basis: str
    waited: float | None = None

    @property
    def needed_per_s(self) -> float:
        """Return the samples per second that the process would read if it never waited for them; a wait of the whole step tells nothing."""
        return self.samples_per_s / (1 - self.waited) if self.waited is not None and self.waited < 1 else self.samples_per_s


def storage(analysis: Analysis, supply: Supply | None = None, digest: str | None = None) -> Table:
    """Build the table of the study's measured cells: of all, or of those on the dataset with this digest, and whether the place of the
    supply feeds them."""
    smallest = {(cell.source, cell.cell_id) for cell in _smallest(analysis.cells)}
    stored = _stored(analysis.frame, digest).iter_rows(named=True)
    cells, rows = rows_of(analysis, (row for row in stored if (row["source"], row["cell_id"]) in smallest))
    needs = [_need(cell, row, supply) for cell, row in zip(cells, rows, strict=True)]
    most = max((cell.cell.gpus_per_node for cell in analysis.cells), default=1)
    return cell_table(
        analysis,
        cells,
        _columns(needs, supply, most, (analysis.process_name, analysis.processes), [cell.measuring for cell in cells]),
        sizes=("batch_size",),
        name="storage",
        title="What the networks read from storage",
        caption=[
            f"Samples per second: of one {analysis.process_name}, in the cell with the fewest of each row. Need: these without the time in "
            "which it waited for input, times the bytes of a sample as the dataset stores it; then for so many on one node. From the "
            "second epoch on, memory serves a dataset that it holds",
            *_supply_words(supply),
        ],
        empty="No run that reads samples was measured; `slipway dataset bench` shows what published rates need.",
    )


def storage_by_rates(rates: Mapping[str, float], supply: Supply) -> Table:
    """Build the table of given rates, samples per second of one GPU by their names; of published ones where none is given."""
    given = {name: (rate, "given") for name, rate in rates.items()}
    published = {f"resnet50 on {gpu}": found for gpu, found in PUBLISHED.items()}
    needs = [Need(samples_per_s=rate, sample_bytes=supply.sample_bytes, basis=basis) for rate, basis in (given or published).values()]
    columns = [words("model", "Model", given or published), *_columns(needs, supply, MIN_NODE, ("GPU", "GPUs"))]
    return Table(
        name="storage",
        title="What networks read from storage",
        caption=sentence(
            "Need: samples per second of one GPU times the bytes of a sample as the dataset stores it; then for so many on one node",
            ""
            if given
            else f"No rate was given, and no run on this dataset was measured: the rates are batch over computation time of {SOURCE}",
            *_supply_words(supply),
        ),
        columns=tuple(columns),
    )


def _need(cell: CellResult, row: Mapping[str, float], supply: Supply | None) -> Need:
    assert cell.rate_per_s is not None  # a measured cell has one
    return Need(
        samples_per_s=cell.rate_per_s.value / row["per_sample"] / cell.num_processes,
        sample_bytes=row["sample_bytes"] if supply is None else supply.sample_bytes,
        basis=f"measured, {cell.cell.nodes}\N{MULTIPLICATION SIGN}{cell.cell.gpus_per_node}",
        waited=cell.input_wait_ratio,
    )


def _columns(
    needs: Sequence[Need], supply: Supply | None, most: int, processes: tuple[str, str], marks: Sequence[frozenset[str]] | None = None
) -> list[Column]:
    """Return the columns behind those that tell the rows apart. `processes`: one and several of them, in words."""
    one, several = processes
    most = max(most, MIN_NODE)
    sizes = sorted({most, *(2**power for power in range(most.bit_length()))})
    per_mega = partial(scaled, MEGA)
    bytes_per_s = [need.needed_per_s * need.sample_bytes for need in needs]
    columns = [
        words("basis", "Rate", [need.basis for need in needs]),
        numbers("sample_bytes", "Sample [kB]", partial(scaled, 1e3), [need.sample_bytes for need in needs]),
        numbers("samples_per_s", "Samples per s", significant, [need.samples_per_s for need in needs], marks),
        *[numbers("input_wait_ratio", "Input wait", percent, waits) for waits in [[need.waited for need in needs]] if any(waits)],
        *[
            numbers(f"processes_{size}", f"{size} {several if size > 1 else one} [MB/s]", per_mega, [size * rate for rate in bytes_per_s])
            for size in sizes
        ],
    ]
    if supply is not None:
        fed, least = ([of / need.needed_per_s for need in needs] for of in (supply.samples_per_s, supply.least_per_s))
        columns += [
            numbers("supply_bytes_per_s", "Supply [MB/s]", per_mega, [supply.bytes_per_s] * len(needs)),
            numbers("fed", f"Feeds {several}", significant, fed),
            words("verdict", "Verdict", [verdict(*both, most, one, several) for both in zip(fed, least, strict=True)], wrap=True),
        ]
    return columns


def verdict(fed: float, least: float, most: int, one: str, several: str) -> str:
    """Say whether a place that feeds `fed` processes, and in its slowest pass `least`, is fast enough for `most` of them."""
    if fed >= most:
        doubt = "" if least >= most else f", but in the slowest pass for {math.floor(least)}"
        margin = fed / most
        return f"enough for {most} {several}: {f'{margin:.3g}' if margin < 100 else f'{margin:,.0f}'} times their need{doubt}"
    if fed >= 1:
        return f"enough for {math.floor(fed)} of {most} {several}"
    return f"too slow for one {one}: it gets {fed:.0%} of what it can use"


def _supply_words(supply: Supply | None) -> list[str]:
    return [] if supply is None else [f"Supply: {supply.method}"]


def _smallest(cells: Sequence[CellResult]) -> list[CellResult]:
    """Return of each series and batch the measured cell with the fewest processes, in which each reads most."""
    found: dict[tuple[str, str, int], CellResult] = {}
    for cell in cells:
        key = cell.source, cell.series, cell.cell.batch_size
        if cell.rate is not None and (key not in found or cell.num_processes < found[key].num_processes):
            found[key] = cell
    return list(found.values())


def _stored(frame: pl.DataFrame, digest: str | None) -> pl.DataFrame:
    """Return for each measured cell the bytes of a stored sample, and how many units of its rate a sample has."""
    stored = frame.filter(MEASURED & (pl.col("dataset_samples") > 0) & pl.col("dataset_bytes").is_not_null())
    if digest is not None:
        stored = stored.filter(pl.col("dataset_digest") == digest)
    return (
        stored.group_by("source", "cell_id", maintain_order=True)
        .agg((pl.col("dataset_bytes") / pl.col("dataset_samples")).mean().alias("sample_bytes"), PER_SAMPLE.mean().alias("per_sample"))
        .filter(pl.col("per_sample") > 0)
    )
