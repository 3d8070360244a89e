"""The columns of records.parquet: where in a record each comes from, and its type. Names carry units; null means not measured.

Series of losses stay in the records: they are read where a curve is drawn, and would be most of the bytes here.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

SCHEMA_NAME: Final = "slipway.run/1"
RESULTS: Final = ("ok", "oom", "nan", "timeout", "hang", "error")
PREVENTED: Final = ("killed", "node_lost", "storage", "preempted", "cancelled")
UNREADABLE: Final = "unreadable"
MISSING: Final = "missing"
STATUSES: Final = (*RESULTS, *PREVENTED, UNREADABLE, MISSING)

SEVEN_STEPS: Final = ("login", "assign", "stage", "train", "result", "push", "release")
BESIDE: Final = ("login", "assign")  # told by the scheduler: they stand beside the sum of the other five, which is run_s
CELL_INTS: Final = ("batch_size", "global_batch_size", "nodes", "gpus_per_node")

TEXT, REAL, WHOLE, FLAG = pl.String(), pl.Float64(), pl.Int64(), pl.Boolean()

# Few fields: lists of structs are most of the parser's work.
_NODE: Final = pl.Struct(
    {
        "hostname": TEXT,
        "cpu_model": TEXT,
        "memory_bytes": WHOLE,
        "gpus": pl.List(pl.Struct({"model": TEXT})),
        "stage": pl.Struct({"bytes": WHOLE, "copied_bytes": WHOLE}),
    }
)

# column: (path in the record, type)
FIELDS: Final[dict[str, tuple[str, pl.DataType]]] = {
    "schema": ("schema", TEXT),
    "run_id": ("run_id", TEXT),
    "attempt": ("attempt", WHOLE),
    "repeat": ("repeat", WHOLE),
    "status": ("status", TEXT),
    "kind": ("kind", TEXT),
    "status_reason": ("status_reason", TEXT),
    "failed_rank": ("failed_rank.rank", WHOLE),
    "failed_host": ("failed_rank.host", TEXT),
    "failed_exit_code": ("failed_rank.exit_code", WHOLE),
    "failed_signal": ("failed_rank.signal", TEXT),
    "failed_last_lines": ("failed_rank.last_lines", TEXT),
    "start": ("time.start", TEXT),
    "end": ("time.end", TEXT),
    "run_s": ("run_s", REAL),
    **{f"{step}_s": (f"steps_s.{step}", REAL) for step in SEVEN_STEPS},
    "scheduler": ("scheduler", TEXT),
    "scheduler_version": ("scheduler_version", TEXT),
    "job_id": ("job_id", TEXT),
    "restart_count": ("restart_count", WHOLE),
    "site": ("site", TEXT),
    "engine": ("engine", TEXT),
    "exclusive": ("exclusive", FLAG),
    "oversubscribed": ("oversubscribed", FLAG),
    "device": ("device", TEXT),
    "world_size": ("world_size", WHOLE),
    "threads_per_rank": ("threads_per_rank", WHOLE),
    "preflight_s": ("preflight.seconds", REAL),
    "network_findings": ("preflight.findings", pl.List(TEXT)),
    "resumed_attempt": ("resumed_from.attempt", WHOLE),
    "resumed_step": ("resumed_from.step", WHOLE),
    "used_before_s": ("resumed_from.used_s", REAL),
    "checkpoint_step": ("checkpoint.step", WHOLE),
    "checkpoint_bytes": ("checkpoint.bytes", WHOLE),
    "num_measured_steps": ("performance.num_measured_steps", WHOLE),
    "num_warmup_steps": ("performance.num_warmup_steps", WHOLE),
    "samples": ("performance.samples", WHOLE),
    "step_n": ("performance.step_s.n", WHOLE),
    **{
        f"step_{name}_s": (f"performance.step_s.{name}", REAL)
        for name in ("p50", "p90", "p95", "p99", "mean", "stdev", "mad", "min", "max")
    },
    "input_wait_mean_s": ("performance.input_wait_s_mean", REAL),
    "first_step_s": ("performance.first_step_s", REAL),
    "window_s": ("performance.window_s", REAL),
    "window_steps_ratio": ("performance.window_steps_ratio", REAL),
    "told_samples_per_s": ("performance.samples_per_s", REAL),
    "rate_to_median_ratio": ("performance.rate_to_median_ratio", REAL),
    "uneven_cause": ("performance.uneven_cause", TEXT),
    "rank_skew_p95_ratio": ("performance.rank_skew_p95_ratio", REAL),
    "straggler_rank": ("performance.straggler_rank", WHOLE),
    "drift_ratio": ("performance.drift_ratio", REAL),
    "first_loss": ("training.first_loss", REAL),
    "final_loss": ("training.final_loss", REAL),
    "eval_split": ("training.eval.split", TEXT),
    "eval_loss": ("training.eval.loss", REAL),
    "eval_accuracy": ("training.eval.accuracy", REAL),
    "eval_samples": ("training.eval.samples", WHOLE),
    "parameters": ("training.parameters", WHOLE),
    "parameter_norm": ("training.parameter_norm", REAL),
    "training_s": ("training.train_s", REAL),
    "evaluation_s": ("training.eval_s", REAL),
    "peak_memory_bytes": ("training.peak_memory_bytes", WHOLE),
    "dataset_digest": ("dataset.digest", TEXT),
    "dataset_samples": ("dataset.samples", WHOLE),
    "dataset_bytes": ("dataset.bytes", WHOLE),
    "warnings": ("warnings", pl.List(TEXT)),
}

# What the report shows of a run's origin, and what must not differ inside a series.
PROVENANCE: Final = (
    "slipway_version",
    "git_sha",
    "git_dirty",
    "python",
    "framework_version",
    "torch_version",
    "cuda_version",
    "cudnn_version",
    "nccl_version",
    "driver_version",
    "image",
    "image_digest",
    "os",
    "kernel",
)
SOFTWARE: Final = ("framework_version", "torch_version", "cuda_version", "cudnn_version", "nccl_version", "driver_version")
FIELDS.update({name: (f"provenance.{name}", TEXT) for name in PROVENANCE})

_BEYOND: Final[dict[str, pl.DataType]] = {"cell.cell_id": TEXT, **{f"cell.{name}": WHOLE for name in CELL_INTS}, "nodes": pl.List(_NODE)}


def record_schema() -> dict[str, pl.DataType]:
    """The part of a record that is read, as nested types: the JSON parser refuses a record that breaks them."""
    tree: dict[str, Any] = {}
    for path, dtype in [*FIELDS.values(), *_BEYOND.items()]:
        *above, last = path.split(".")
        node = tree
        for name in above:
            node = node.setdefault(name, {})
        node[last] = dtype
    return {name: _typed(value) for name, value in tree.items()}


def _typed(value: Any) -> pl.DataType:
    return pl.Struct({name: _typed(inner) for name, inner in value.items()}) if isinstance(value, dict) else value


def field(path: str) -> pl.Expr:
    """The value at a dotted path of nested structs."""
    first, *rest = path.split(".")
    expression = pl.col(first)
    for name in rest:
        expression = expression.struct.field(name)
    return expression


def flat_columns() -> list[pl.Expr]:
    """Expressions that turn parsed records into columns, hardware included."""
    nodes = pl.col("nodes")
    each = pl.element().struct
    gpu = each.field("gpus").list.first().struct.field("model")
    machine = pl.concat_str(gpu, each.field("cpu_model"), separator=", ", ignore_nulls=True)
    return [
        *[field(path).alias(name) for name, (path, _) in FIELDS.items()],
        *[field(f"cell.{name}").alias(f"record_{name}") for name in ("cell_id", *CELL_INTS)],
        _known(nodes.list.eval(each.field("hostname").drop_nulls()).list.join(",")).alias("hosts"),
        _known(nodes.list.eval(machine.drop_nulls().unique().sort()).list.join(" + ")).alias("hardware"),
        nodes.list.eval(each.field("gpus").list.len()).list.sum().cast(WHOLE).alias("num_gpus"),
        nodes.list.eval(each.field("memory_bytes")).list.min().alias("memory_per_node_bytes"),
        _total(each.field("stage").struct.field("bytes")).alias("staged_bytes"),
        _total(each.field("stage").struct.field("copied_bytes")).alias("copied_bytes"),
    ]


def _known(text: pl.Expr) -> pl.Expr:
    return pl.when(text != "").then(text)


def _total(of_node: pl.Expr) -> pl.Expr:
    """The sum over the nodes, null unless every node told its part."""
    nodes = pl.col("nodes")
    told = nodes.list.eval(of_node.is_not_null()).list.all() & (nodes.list.len() > 0)
    return pl.when(told).then(nodes.list.eval(of_node).list.sum())
