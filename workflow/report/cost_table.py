"""Make the table of what runs cost: hours, energy, samples per joule, and prices by the site file."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import polars as pl

from workflow.report.analysis import Analysis
from workflow.report.cells import ENDED_WELL, MEASURED, CellResult, Estimate, LogSample, geometric_mean
from workflow.report.shared_columns import cell_table, rows_of
from workflow.report.table_type import Table, estimates, numbers, significant, words
from workflow.study.site import Prices

HOUR_S: Final = 3600.0
KWH_J: Final = 3.6e6
NO_PRICES: Final = Prices(currency="")
PER_SAMPLE: Final = pl.when(pl.col("unit") == "tokens").then(pl.col("tokens") / pl.col("samples")).otherwise(1.0)
"""How many units of its rate a sample of a run has."""
DIFFERENT: Final = "the energy of some runs is not known, or not of the same parts"
NO_EPOCH: Final = "an epoch: how many samples it has is not in these records"


def cost(analysis: Analysis) -> Table:
    """Build the table: one row per cell with a run that ended well. What is not known is empty, and the note says why."""
    cells, sums = rows_of(analysis, _sums(analysis.frame).iter_rows(named=True))
    prices = {source.label: prices_of(source.site_keys) for source in analysis.sources}
    rows = [_row(cell, row, prices[cell.source]) for cell, row in zip(cells, sums, strict=True)]
    unit = " or ".join(analysis.units)

    def each(name: str) -> list[Any]:
        return [row.get(name) for row in rows]

    columns = [
        numbers("run_process_h", "Process hours", significant, each("process_h")),
        numbers("run_gpu_h", "GPU hours", significant, each("gpu_h")),
        words("energy_of", "Energy of", each("energy_of")),
        numbers("watts", "Power [W]", significant, each("watts")),
        numbers("window_kwh", "Window [kWh]", significant, each("window_kwh")),
        estimates("per_joule", f"{unit.capitalize()} per J", each("per_joule"), [cell.measuring for cell in cells]),
        numbers("epoch_gpu_h", "Epoch [GPU hours]", significant, each("epoch_gpu_h")),
        numbers("epoch_kwh", "Epoch [kWh]", significant, each("epoch_kwh")),
        numbers("run_price", "Run costs", significant, each("run_price")),
        numbers("epoch_price", "Epoch costs", significant, each("epoch_price")),
        numbers("epoch_energy_price", "Epoch energy costs", significant, each("epoch_energy_price")),
        words("currency", "Currency", each("currency")),
        words("note", "Note", each("note"), wrap=True),
    ]
    return cell_table(
        analysis,
        cells,
        columns,
        name="cost",
        title="Energy and cost",
        caption=[
            "Hours of one run, from stage to release: means over the runs that ended well. Energy: of the measured window, by counters of "
            "GPUs (NVML) and of processors and their memory (RAPL, of whole machines). The hours of an epoch are those of training at the "
            "rate of the window. Run, epoch: what their hours cost. Energy of an epoch: its kWh times their price, beside that",
            *[_price_text(source.label if len(analysis.sources) > 1 else "", prices[source.label]) for source in analysis.sources],
        ],
        empty="No run has ended well yet.",
    )


def has_cost(analysis: Analysis) -> bool:
    """Return True if a run used GPUs, its energy is known, or a price: else the table says no more than that of the hours."""
    known = pl.any_horizontal(pl.col("energy_gpu_j", "energy_node_j").is_not_null(), pl.col("num_gpus") > 0)
    return bool(analysis.frame.select(known.any()).item()) or any(prices_of(source.site_keys) for source in analysis.sources)


def prices_of(site_keys: Mapping[str, object]) -> Prices | None:
    """Return the prices of a site in study.json; None where it has none, or what is there are none."""
    try:
        return msgspec.convert(site_keys.get("prices"), Prices | None)
    except msgspec.ValidationError:
        return None


def _price_text(source: str, prices: Prices | None) -> str:
    of = f" of {source}" if source else ""
    if prices is None:
        return f"No prices{of}: the site file has none (`prices`)"
    parts = {"a GPU hour": prices.gpu_hour, "an hour of a node": prices.node_hour, "a kWh": prices.kwh}
    told = [f"{value:g} {prices.currency} for {what}" for what, value in parts.items() if value is not None]
    return f"Prices{of}: {', '.join(told)}"


def _sums(frame: pl.DataFrame) -> pl.DataFrame:
    """Return what the runs of each cell took, and of those that were measured the energy of their windows."""
    coverage = pl.concat_str(
        pl.when(pl.col("energy_gpu_j").is_not_null()).then(pl.lit("GPUs")),
        pl.when(pl.col("energy_node_j").is_not_null()).then(pl.lit("processors")),
        separator=", ",
        ignore_nulls=True,
    )
    training = pl.col("window_s") / (pl.col("window_s") + pl.col("window_evaluation_s").fill_null(0.0))  # counters ran in evaluations too
    joules = pl.when(coverage != "").then(pl.sum_horizontal("energy_gpu_j", "energy_node_j") * training)
    joules = pl.when(joules > 0).then(joules)
    rows = frame.filter(ENDED_WELL).with_columns(
        MEASURED.alias("measured"),
        coverage.alias("coverage"),
        joules.alias("joules"),
        (pl.col("rate_per_s") * pl.col("window_s") / joules).log().alias("per_joule"),
        (pl.col("rate_per_s") / PER_SAMPLE).log().alias("sample_rate"),
        PER_SAMPLE.alias("per_sample"),
        pl.col("hosts").str.split(",").list.n_unique().alias("machines"),
    )
    measured = pl.col("measured")
    per_joule = pl.col("per_joule").filter(measured)
    return rows.group_by("source", "cell_id", maintain_order=True).agg(
        pl.col("run_s").mean(),
        pl.col("num_gpus").max(),
        pl.col("machines").max(),
        pl.col("coverage").filter(measured).unique().sort().alias("coverages"),
        pl.col("joules").filter(measured).mean(),
        (pl.col("joules") / pl.col("window_s")).filter(measured).mean().alias("watts"),
        per_joule.count().alias("n"),
        per_joule.mean().alias("mean"),
        per_joule.var().alias("variance"),
        pl.col("sample_rate").filter(measured).mean().exp(),
        pl.col("per_sample").filter(measured).mean(),
        pl.when(pl.col("train_samples").n_unique() == 1).then(pl.col("train_samples").first()).first().alias("train_samples"),
        pl.col("energy_note").filter(measured).drop_nulls().unique(maintain_order=True).alias("notes"),
    )


def _row(cell: CellResult, row: Mapping[str, Any], prices: Prices | None) -> dict[str, Any]:
    """Return the values of a row by the keys of the columns; one that is not known is not there, or None."""
    price = prices or NO_PRICES
    hours = row["run_s"] / HOUR_S
    a_hour = _hourly(price, row)
    values: dict[str, Any] = {"process_h": hours * cell.num_processes, "gpu_h": hours * row["num_gpus"]}
    notes = [*row["notes"]]
    alike = len(row["coverages"]) == 1 and row["n"] == cell.num_measured
    if alike and row["n"]:
        per_joule = geometric_mean(LogSample(n=row["n"], mean=row["mean"], variance=row["variance"] or 0.0))
        values |= {"energy_of": row["coverages"][0], "watts": row["watts"], "window_kwh": row["joules"] / KWH_J, "per_joule": per_joule}
    elif row["coverages"] and any(row["coverages"]):
        notes.append(DIFFERENT)
    if cell.cell.mode != "infer" and cell.num_measured and cell.cell.has_dataset:
        values |= _epoch(row, values.get("per_joule"), price, a_hour)
        notes += [] if row["train_samples"] else [NO_EPOCH]
    values["run_price"] = None if a_hour is None else hours * a_hour
    values["currency"] = price.currency if any(values.get(name) is not None for name in PRICED) else None
    return {**values, "note": "; ".join(notes) or None}


PRICED: Final = ("run_price", "epoch_price", "epoch_energy_price")


def _hourly(price: Prices, row: Mapping[str, Any]) -> float | None:
    """Return what an hour of the run costs. None where the site has no price for it, or the number of machines is not known."""
    parts = [(price.gpu_hour, row["num_gpus"]), (price.node_hour, row["machines"])]
    asked = [(each, number) for each, number in parts if each is not None]
    if any(number is None for _, number in asked) or not any(number for _, number in asked):
        return None
    return math.fsum(each * number for each, number in asked)


def _epoch(row: Mapping[str, Any], per_joule: Estimate | None, price: Prices, a_hour: float | None) -> dict[str, float | None]:
    samples, rate = row["train_samples"], row["sample_rate"]
    if not samples or not rate:
        return {}
    hours = samples / rate / HOUR_S
    kwh = None if per_joule is None else samples * row["per_sample"] / per_joule.value / KWH_J
    return {
        "epoch_gpu_h": hours * row["num_gpus"],
        "epoch_kwh": kwh,
        "epoch_price": None if a_hour is None else hours * a_hour,
        "epoch_energy_price": None if kwh is None or price.kwh is None else kwh * price.kwh,
    }
