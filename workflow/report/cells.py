"""Runs -> cells: what the repeats of one point of the matrix say together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import polars as pl
from msgspec import Struct

from containers.engines import ENGINES, in_container
from workflow.report.drifting import drift_sums, drifts
from workflow.report.lint import RUN_MARKS
from workflow.report.statistics import Estimate, LogSample, geometric_mean
from workflow.run.record.columns import SETTINGS, SEVEN_STEPS, SOFTWARE, TIMES_ONLY, UNMEASURED
from workflow.run.record.losses import first_of
from workflow.study.baseline_keys import NOT_SERIES
from workflow.study.cell import unit_of

# arithmetic means over the runs that were measured, or have wall times only: times add up only so
MEANS: Final = (
    *("run_s", *(f"{step}_s" for step in SEVEN_STEPS), "training_s"),
    *("first_step_s", "window_s", "step_min_s", "step_p99_s", "step_max_s", "eval_accuracy", "eval_loss", "final_loss"),
)
SAMPLES: Final = ("rate_per_s", "step_p50_s", "step_p95_s")
DISTINCT: Final = (
    "hardware",
    "software",
    "image_digest",
    "contained",
    "device",
    "threads_per_rank",
    "dataset_digest",
    "commit",
    "program_digest",
    *SETTINGS,
)

MEASURED: Final = (pl.col("status") == "ok") & pl.col("rate_per_s").is_not_null()
"""Whether a row of records.parquet is a measurement, for all tables, plots and counts: it ended ok, and a rate could be made of it."""
CONTAINED: Final = (
    pl.when(pl.col("engine").is_in([name for name in ENGINES if not in_container(name)]))
    .then(pl.lit("no"))
    .when(pl.col("engine").is_not_null())
    .then(pl.lit("yes"))
)
"""Whether a run was in a container. Without one it has no image, which differs from any; where no engine is told, nobody knows."""
_MIXED: Final = {
    **{"hardware": "hardware", "software": "software", "image_digest": "image", "contained": "image", "dataset_digest": "dataset"},
    **{"commit": "commit", "program_digest": "program", "threads_per_rank": "threads", **dict.fromkeys(SETTINGS, "settings")},
}
"""Of DISTINCT those of which one value is right, and the mark of several."""
ROUNDING: Final = 1e-9
_TAKEN: Final = (
    *("source", "cell_id", "series", "num_runs", "num_measured", "num_ended_well", "num_allocations", "num_node_sets", "input_wait_ratio"),
)
"""Columns of a group that are fields of its CellResult."""
OF_ONE: Final = tuple(key for key in NOT_SERIES if key != "cell_id")
HAS_TIMES_ONLY: Final = (pl.col("status") == "ok") & ~MEASURED & pl.col("steps_source").eq_missing("none")
"""Whether a run did all that it should, and has no rate: its program tells of no steps."""
ENDED_WELL: Final = MEASURED | HAS_TIMES_ONLY
END: Final = (
    pl.when(HAS_TIMES_ONLY)
    .then(pl.lit(TIMES_ONLY))
    .when((pl.col("status") == "ok") & ~MEASURED)
    .then(pl.lit(UNMEASURED))
    .otherwise(pl.col("status"))
)
"""How a row ended, where `ok` is a measurement."""


Shape = tuple[int, int, int]
"""Processes, nodes, processes of each node."""


class CellResult(Struct, frozen=True, kw_only=True, dict=True):
    """One cell of one source. `rate`, `step` and `p95` are samples of the runs' own rates, median steps and 95th percentiles; None where no
    run was measured. The runs that ended well (measured, or with wall times only) were in so many allocations (jobs, starts of them) and
    on so many different sets of hosts."""

    source: str
    cell_id: str
    series: str
    keys: Mapping[str, Any]
    num_runs: int
    num_measured: int
    num_ended_well: int
    num_allocations: int
    num_node_sets: int
    rate: LogSample | None
    step: LogSample | None
    p95: LogSample | None
    means: Mapping[str, float | None]
    input_wait_ratio: float | None
    distinct: Mapping[str, frozenset[str]]
    failures: frozenset[str]
    marks: frozenset[str]
    first_losses: Mapping[int, float] | None = None
    """Step -> loss, of the first run that ended well and told them."""

    @property
    def unit(self) -> str:
        """What the rate counts: `samples` or `tokens`."""
        return unit_of(self.keys)

    @property
    def num_processes(self) -> int:
        return int(self.keys["nodes"] * self.keys["gpus_per_node"])

    @property
    def shape(self) -> Shape:
        return self.num_processes, self.keys["nodes"], self.keys["gpus_per_node"]

    @cached_property
    def step_s(self) -> Estimate | None:
        """Seconds of a step: the geometric mean of the runs' medians."""
        return geometric_mean(self.step) if self.step else None

    @cached_property
    def p95_s(self) -> Estimate | None:
        """Seconds: the geometric mean of the runs' 95th percentiles."""
        return geometric_mean(self.p95) if self.p95 else None

    @cached_property
    def rate_per_s(self) -> Estimate | None:
        """All processes together: the geometric mean of the runs' rates, each samples, or tokens, of its window over wall time."""
        return geometric_mean(self.rate) if self.rate else None

    @property
    def reason(self) -> str | None:
        """Why there is no number, None if there is one."""
        return None if self.rate else ", ".join(sorted(self.failures)) or "not measured"


def cells_of(frame: pl.DataFrame) -> tuple[CellResult, ...]:
    """The cells in the study's order. Rows without a cell (an unreadable record that no study.json places) belong to none."""
    software = pl.concat_str([pl.format(f"{name} {{}}", pl.col(name)) for name in SOFTWARE], separator=", ", ignore_nulls=True)
    rows = frame.filter(pl.col("cell_id").is_not_null()).with_columns(
        MEASURED.alias("measured"),
        ENDED_WELL.alias("ended_well"),
        software.alias("software"),
        CONTAINED.alias("contained"),
        pl.coalesce("git_sha", "slipway_version").alias("commit"),
        pl.when(~MEASURED).then(END).alias("failures"),
    )
    waited = pl.col("input_wait_mean_s") / pl.col("step_mean_s")
    input_wait = pl.when(waited < 1 + ROUNDING).then(pl.min_horizontal(waited, pl.lit(1.0)))  # more than a step is no part of it
    job = pl.format("{} {} {}", "scheduler", "job_id", pl.col("restart_count").fill_null(0))
    hosts = pl.col("hosts").str.split(",").list.unique().list.sort().list.join(",")
    logs = {name: pl.col(name).filter("measured").log() for name in SAMPLES}
    groups = rows.group_by("source", "cell_id", maintain_order=True).agg(
        pl.col("series", "cell", *OF_ONE).first(),
        pl.len().alias("num_runs"),
        pl.col("measured").sum().alias("num_measured"),
        pl.col("ended_well").sum().alias("num_ended_well"),
        *[expression.mean().alias(f"{name}.mean") for name, expression in logs.items()],
        *[expression.var().alias(f"{name}.variance") for name, expression in logs.items()],
        *[expression.count().alias(f"{name}.n") for name, expression in logs.items()],
        pl.col("repeat").filter("measured").alias("blocks"),
        logs["rate_per_s"].alias("rates"),
        *[pl.col(name).filter("ended_well").mean() for name in MEANS],
        input_wait.filter("measured").mean().alias("input_wait_ratio"),
        *[pl.col(name).filter("ended_well").drop_nulls().unique() for name in DISTINCT],
        pl.col("failures").drop_nulls().unique(),
        pl.col("first_losses").filter(pl.col("ended_well") & (pl.col("first_losses").list.len() > 0)).first(),
        job.filter("ended_well").drop_nulls().n_unique().alias("num_allocations"),
        hosts.filter("ended_well").drop_nulls().n_unique().alias("num_node_sets"),
        *drift_sums(pl.col("measured")),
        *[expression.filter("ended_well").any().alias(f"mark.{name}") for name, expression in RUN_MARKS.items()],
    )
    alike: dict[str, dict[str, Any]] = {}
    met: dict[tuple[tuple[str, ...], ...], Mapping[str, frozenset[str]]] = {}
    return tuple(_cell(row, _keys(row, alike), _distinct(row, met)) for row in groups.iter_rows(named=True))


def _keys(row: Mapping[str, Any], alike: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The cell's keys; what is the same in its whole series is read once, and shared."""
    if row["series"] not in alike:
        keys = json.loads(row["cell"])
        alike[row["series"]] = {key: value for key, value in keys.items() if key not in NOT_SERIES}
    return {"cell_id": row["cell_id"], **{key: row[key] for key in OF_ONE}, **alike[row["series"]]}


def _distinct(row: Mapping[str, Any], met: dict[tuple[tuple[str, ...], ...], Mapping[str, frozenset[str]]]) -> Mapping[str, frozenset[str]]:
    """The values of DISTINCT in the runs of a cell; those of most cells are equal, and one object."""
    values = tuple([tuple(row[name]) for name in DISTINCT])
    if values not in met:
        met[values] = {name: frozenset(found) for name, found in zip(DISTINCT, values, strict=True)}
    return met[values]


def shared_keys(keys: Mapping[str, Any]) -> tuple[int, ...]:
    """Return what is equal for cells of one series whose keys are the same objects, as those of `cells_of` are: whoever makes something of
    these keys makes it once."""
    return tuple([id(value) for key, value in keys.items() if key not in NOT_SERIES])


def _cell(row: Mapping[str, Any], keys: Mapping[str, Any], distinct: Mapping[str, frozenset[str]]) -> CellResult:
    marks = {name for name in RUN_MARKS if row[f"mark.{name}"]}
    if 0 < row["num_ended_well"] < row["num_runs"]:
        marks.add("partial")
    if drifts(row):
        marks.add("drift")
    return CellResult(
        **{name: row[name] for name in _TAKEN},
        keys=keys,
        rate=_sample(row, "rate_per_s", tuple(sorted(zip(row["blocks"], row["rates"], strict=True)))),
        step=_sample(row, "step_p50_s"),
        p95=_sample(row, "step_p95_s"),
        means={name: row[name] for name in MEANS},
        distinct=distinct,
        failures=frozenset(row["failures"]),
        marks=frozenset(marks | mixed(distinct)),
        first_losses=first_of(row["first_losses"]),
    )


def _sample(row: Mapping[str, Any], name: str, by_block: tuple[tuple[int, float], ...] = ()) -> LogSample | None:
    n = row[f"{name}.n"]
    return LogSample(n=n, mean=row[f"{name}.mean"], variance=row[f"{name}.variance"] or 0.0, by_block=by_block) if n else None


def mixed(distinct: Mapping[str, frozenset[str]]) -> set[str]:
    """Marks for what must be one and the same wherever numbers are put together. On GPUs the CPU's threads only feed them. What a record
    does not tell differs from nothing."""
    found = {mark for name, mark in _MIXED.items() if len(distinct.get(name, ())) > 1}
    return found if "cpu" in distinct["device"] else found - {"threads"}
