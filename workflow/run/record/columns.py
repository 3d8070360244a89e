"""The columns of records.parquet: where in a record each comes from, and its type. Names carry units; null means not measured.

Series of losses stay in the records: they are read where a curve is drawn, and would be most of the bytes here.
"""

from __future__ import annotations

from typing import Final

from cluster.types import DEVICES
from workflow.run.record.events import PRECISIONS
from workflow.run.record.kinds import (
    EIGHT,
    FLAG,
    FLOP,
    FROM_ONE,
    LONG,
    PAIRS,
    RANKS,
    REAL,
    SHARE,
    SIGNED,
    TEXT,
    TEXTS,
    TOLD,
    WHOLE,
    Kind,
    one_of,
)
from workflow.run.record.outcome import TABLE
from workflow.run.record.step_clock import STEPS
from workflow.run.record.steps_source import SOURCES
from workflow.study.cell import SIZES, WORDS

SCHEMA_NAME: Final = "slipway.run/1"
RESULTS: Final = tuple(status for status, error in TABLE.items() if error is None)
PREVENTED: Final = tuple(status for status in TABLE if status not in RESULTS)
UNREADABLE: Final = "unreadable"
MISSING: Final = "missing"
UNMEASURED: Final = "not measured"  # ended ok, but there is no rate
TIMES_ONLY: Final = "wall times only"  # ended ok, and its program tells of no steps

SEVEN_STEPS: Final = STEPS
SHOWN_STEPS: Final = SEVEN_STEPS[1:]  # login is of the command, the same for all runs of a start: it says nothing of a cell
BESIDE: Final = "assign"  # told by the scheduler: it stands beside the sum of the others, which is run_s

# column: (path in the record, type)
FIELDS: Final[dict[str, tuple[str, Kind]]] = {
    "schema": ("schema", TEXT),
    "seal": ("seal", TEXT),
    "run_id": ("run_id", TEXT),
    "attempt": ("attempt", FROM_ONE),
    "repeat": ("repeat", FROM_ONE),
    "result_number": ("result_number", FROM_ONE),
    "status": ("status", TEXT),
    "kind": ("kind", TEXT),
    "status_reason": ("status_reason", LONG),
    "failed_rank": ("failed_rank.rank", WHOLE),
    "failed_host": ("failed_rank.host", TEXT),
    "failed_exit_code": ("failed_rank.exit_code", WHOLE),
    "failed_signal": ("failed_rank.signal", TEXT),
    "failed_last_lines": ("failed_rank.last_lines", LONG),
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
    "device": ("device", one_of(*DEVICES)),
    "world_size": ("world_size", FROM_ONE),
    "threads_per_rank": ("threads_per_rank", FROM_ONE),
    "steps_source": ("steps_source", one_of(*SOURCES)),
    "preflight_s": ("preflight.seconds", REAL),
    "network_findings": ("preflight.findings", TEXTS),
    "resumed_attempt": ("resumed_from.attempt", FROM_ONE),
    "resumed_step": ("resumed_from.step", WHOLE),
    "used_before_s": ("resumed_from.used_s", REAL),
    "checkpoint_step": ("checkpoint.step", WHOLE),
    "checkpoint_bytes": ("checkpoint.bytes", WHOLE),
    "num_measured_steps": ("performance.num_measured_steps", FROM_ONE),
    "num_warmup_steps": ("performance.num_warmup_steps", WHOLE),
    "samples": ("performance.samples", WHOLE),
    "samples_reported": ("performance.samples_reported", WHOLE),
    "assumed": ("performance.assumed", TEXTS),
    "tokens": ("performance.tokens", WHOLE),
    "steps_together": ("performance.steps_together", FROM_ONE),
    "step_n": ("performance.step_s.n", FROM_ONE),
    **{
        f"step_{name}_s": (f"performance.step_s.{name}", REAL)
        for name in ("p50", "p90", "p95", "p99", "mean", "stdev", "mad", "min", "max")
    },
    "input_wait_mean_s": ("performance.input_wait_s_mean", REAL),
    "first_step_s": ("performance.first_step_s", REAL),
    "window_s": ("performance.window_s", REAL),
    "window_steps_ratio": ("performance.window_steps_ratio", REAL),
    "told_samples_per_s": ("performance.samples_per_s", REAL),
    "told_tokens_per_s": ("performance.tokens_per_s", REAL),
    "rate_to_median_ratio": ("performance.rate_to_median_ratio", REAL),
    "uneven_cause": ("performance.uneven_cause", one_of("input", "stalls", "stragglers", "gaps")),
    "rank_skew_p95_ratio": ("performance.rank_skew_p95_ratio", REAL),
    "straggler_rank": ("performance.straggler_rank", WHOLE),
    "drift_ratio": ("performance.drift_ratio", REAL),
    "drift_change_ratio": ("performance.drift.change_ratio", SIGNED),
    "drift_others_ratio": ("performance.drift.others_ratio", EIGHT),
    "last_half_ratio": ("performance.last_half_ratio", REAL),
    "first_steps_ratio": ("performance.first_steps_ratio", REAL),
    "window_told_s": ("window_seen.window_s", REAL),
    "window_least_s": ("window_seen.least_s", REAL),
    "window_most_s": ("window_seen.most_s", REAL),
    "window_together_s": ("window_seen.together_s", REAL),
    "first_loss": ("training.first_loss", SIGNED),
    "first_losses": ("training.first_losses", PAIRS),
    "final_loss": ("training.final_loss", SIGNED),
    "eval_split": ("training.eval.split", TEXT),
    "eval_loss": ("training.eval.loss", SIGNED),
    "eval_accuracy": ("training.eval.accuracy", SHARE),
    "eval_samples": ("training.eval.samples", WHOLE),
    "parameters": ("training.parameters", WHOLE),
    "told_flop_per_unit": ("training.flop_per_unit", FLOP),
    "told_precision": ("training.precision", one_of(*PRECISIONS)),
    "model_macs": ("model_macs", WHOLE),
    "model_first_macs": ("model_first_macs", WHOLE),
    "parameter_norm": ("training.parameter_norm", SIGNED),
    "parameter_checksum": ("training.replicas.checksum", TEXT),
    "checksum_ranks": ("training.replicas.ranks", FROM_ONE),
    "ranks_apart": ("training.replicas.apart", RANKS),
    "late_ranks": ("training.late_ranks", RANKS),
    "training_s": ("training.train_s", REAL),
    "evaluation_s": ("training.eval_s", REAL),
    "peak_memory_bytes": ("training.peak_memory_bytes", WHOLE),
    "gpu_memory_bytes": ("provenance.gpu_memory_bytes", WHOLE),
    "dataset_digest": ("dataset.digest", TEXT),
    "dataset_samples": ("dataset.samples", WHOLE),
    "dataset_bytes": ("dataset.bytes", WHOLE),
    "busy": ("busy", TEXTS),
    "warnings": ("warnings", TEXTS),
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
    "program_digest",
    "tf32",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "deterministic_algorithms",
    "os",
    "kernel",
)
SOFTWARE: Final = ("framework_version", "torch_version", "cuda_version", "cudnn_version", "nccl_version", "driver_version")
SETTINGS: Final = ("tf32", "cudnn_benchmark", "cudnn_deterministic", "deterministic_algorithms")
FIELDS.update({name: (f"provenance.{name}", TOLD) for name in PROVENANCE})
PROVENANCE_KINDS: Final = {path.removeprefix("provenance."): kind for path, kind in FIELDS.values() if path.startswith("provenance.")}
"""What a record may say in each key of its provenance that is a column."""

# of the cell in the record, beside the study's own cell of that run: where they differ, the record is of something else
RECORD_CELL: Final[dict[str, tuple[str, Kind]]] = {
    "record_study": ("study", TEXT),
    "record_cell_id": ("cell.cell_id", TEXT),
    **{f"record_{name}": (f"cell.{name}", FROM_ONE) for name in SIZES},
    **{f"record_{name}": (f"cell.{name}", TEXT) for name in WORDS},
    "record_seed": ("cell.seed", WHOLE),
}
# of all nodes together
MACHINES: Final[dict[str, Kind]] = {
    "hosts": LONG,
    "hardware": LONG,
    "machine": LONG,
    "gpu_models": LONG,
    "mixed_hardware": FLAG,
    "num_gpus": WHOLE,
    "memory_per_node_bytes": WHOLE,
    "staged_bytes": WHOLE,
    "copied_bytes": WHOLE,
    "busy_cores": REAL,  # used by others, of the node where these were most, while they were more than the limit
    "busy_of_cores": WHOLE,
    "others_unseen": FLAG,  # whether on a node nobody knows what others used while it measured; null of a version that did not watch
}
# what every record says; and what it says if the object that it stands in is there
REQUIRED: Final = frozenset(
    {
        *("schema", "run_id", "attempt", "repeat", "status", "kind", "start", "end", "run_s", "device", "world_size", "threads_per_rank"),
        *("record_cell_id", *(f"record_{name}" for name in SIZES)),
        *("num_measured_steps", "step_n", *(f"step_{name}_s" for name in ("p50", "p90", "p95", "p99", "mean", "min", "max"))),
    }
)
REQUIRED_OBJECTS: Final = frozenset({"time", "steps_s", "cell", "provenance", "performance.step_s"})
