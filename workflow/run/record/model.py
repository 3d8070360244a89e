"""The record of one attempt, schema `slipway.run/1`, as one tree of types. Null: not measured.

Everything that knows the keys of a record follows from this tree: readers decode into it, the columns of the tables are the fields that
carry a `Column`, and the JSON Schema is made of it. A key that a type does not know was written by another version: readers pass over it.

`python -m workflow.run.record.model` writes config/schemas/record.schema.json; with `--check` it exits with 1 if that is not current; with
`--validate FILE...` it checks records, and refuses unknown keys too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from base.errors import RecordError
from base.publish import publish
from base.seal import read_sealed
from cluster.installation import SCHEMAS
from workflow.run.record.outcome import Status
from workflow.run.record.step_clock import BESIDE
from workflow.study.cell import Cell

SCHEMA_NAME: Final = "slipway.run/1"
SCHEMA_FILE: Final = SCHEMAS / "record.schema.json"
CLOSING_RATIO: Final = 0.01
CLOSING_S: Final = 0.001
OPEN: Final = ("provenance",)
"""Objects to which a program may add keys of its own."""
MOST: Final = 2**63 - 1


class NotBelieved(ValueError):
    """What keeps a record from being believed, in words."""


@dataclass(frozen=True)
class Column:
    """In `Annotated`: the field is a column of records.parquet, under this name, or under its own."""

    name: str = ""


def _words(expected: str) -> dict[str, str]:
    return {"expected": expected}


Real = Annotated[float, Meta(ge=0, le=1e15, extra=_words("a number from 0 to 1e15"))]
Flop = Annotated[float, Meta(ge=0, le=1e30, extra=_words("a number from 0 to 1e30"))]
Signed = Annotated[float, Meta(ge=-1e100, le=1e100, extra=_words("a number below 1e100"))]
Share = Annotated[float, Meta(ge=0, le=1, extra=_words("a number from 0 to 1"))]
Whole = Annotated[int, Meta(ge=0, le=MOST, extra=_words("a whole number from 0"))]
FromOne = Annotated[int, Meta(ge=1, le=MOST, extra=_words("a whole number from 1"))]
Rank = Annotated[int, Meta(ge=0, le=2**31, extra=_words("a rank"))]
Name = Annotated[str, Meta(max_length=255, extra=_words("text of at most 255 characters"))]
Text = Annotated[str, Meta(max_length=4096, extra=_words("text of at most 4096 characters"))]
Long = Annotated[str, Meta(max_length=65536, extra=_words("text of at most 65536 characters"))]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", extra=_words("64 hex digits"))]
Texts = Annotated[tuple[Long, ...], Meta(extra=_words("a list of texts"))]
Pairs = Annotated[tuple[tuple[Whole, Signed], ...], Meta(extra=_words("a list of [step, loss]"))]
Told = Text | int | float | bool
"""What a program tells of itself; a column has its text."""


class Part(Struct, frozen=True):
    """An object of the record. What it says of a field is checked by whoever makes one of JSON."""


class FailedRank(Part, frozen=True, kw_only=True):
    """The first rank that failed, or the sidecar. Neither code nor signal: it hangs."""

    rank: Annotated[Whole | None, Column("failed_rank")] = None
    host: Annotated[Text | None, Column("failed_host")] = None
    exit_code: Annotated[Whole | None, Column("failed_exit_code")] = None
    signal: Annotated[Text | None, Column("failed_signal")] = None
    last_lines: Annotated[Long | None, Column("failed_last_lines")] = None
    sidecar: Text | None = None


class Times(Part, frozen=True, kw_only=True):
    """Wall clock, ISO 8601 with its zone."""

    start: Annotated[Text, Column("start")]
    end: Annotated[Text, Column("end")]


class Steps(Part, frozen=True, kw_only=True):
    """Seconds of the seven steps; null: not reached, or not known."""

    login: Annotated[Real | None, Column("login_s")] = None
    assign: Annotated[Real | None, Column("assign_s")] = None
    stage: Annotated[Real | None, Column("stage_s")] = None
    train: Annotated[Real | None, Column("train_s")] = None
    result: Annotated[Real | None, Column("result_s")] = None
    push: Annotated[Real | None, Column("push_s")] = None
    release: Annotated[Real | None, Column("release_s")] = None


class Gpu(Part, frozen=True, kw_only=True):
    """One GPU that was granted."""

    uuid: Text | None = None
    model: Name | None = None


class Stage(Part, frozen=True, kw_only=True):
    """What staging did on a node: of the copied bytes, those read from storage and those that other nodes sent; and those read back from
    the node's own disk and hashed."""

    bytes: Whole | None = None
    copied_bytes: Whole | None = None
    storage_bytes: Whole | None = None
    peer_bytes: Whole | None = None
    checked_bytes: Whole | None = None
    hit: bool | None = None
    seconds: Real | None = None


class MachineCores(Part, frozen=True, kw_only=True):
    """Packages, cores and hardware threads of a whole machine."""

    sockets: Whole
    cores: Whole
    cpus: Whole


class Interface(Part, frozen=True, kw_only=True):
    """What connects a machine to others; without a rate where its kernel knows none."""

    name: Text | None = None
    kind: Name
    mbit_per_s: Whole | None = None


class Busiest(Part, frozen=True, kw_only=True):
    """Somebody else who used the run's cores: command and user."""

    name: Text
    cores: Real


class GpuLoad(Part, frozen=True, kw_only=True):
    """One GPU: means of the looks within the time that is meant, the rest of those around it too."""

    uuid: Text
    looks: Whole
    mhz_mean: Real | None = None
    max_mhz: Real | None = None
    celsius_max: Real | None = None
    watts_mean: Real | None = None
    busy_ratio_mean: Share | None = None
    throttled: Texts | None = None
    ecc_errors: Whole | None = None
    others_max: Whole | None = None


class LoadOf(Part, frozen=True, kw_only=True):
    """What a machine did in some seconds, of the cores of the run."""

    seconds: Real
    others_cores: Real | None = None
    own_cores: Real | None = None
    kernel_cores: Real | None = None
    interrupt_cores: Real | None = None
    steal_ratio: Share | None = None
    busiest: tuple[Busiest, ...] = ()
    voluntary_switches_per_s: Real | None = None
    involuntary_switches_per_s: Real | None = None
    major_faults: Whole | None = None
    cpu_wait_ratio: Share | None = None
    memory_wait_ratio: Share | None = None
    memory_stall_ratio: Share | None = None
    io_wait_ratio: Share | None = None
    io_stall_ratio: Share | None = None
    available_bytes_min: Whole | None = None
    swapped_in_bytes: Whole | None = None
    swapped_out_bytes: Whole | None = None
    mhz_mean: Real | None = None
    mhz_min: Real | None = None
    throttle_events: Whole | None = None
    gpus: tuple[GpuLoad, ...] | None = None


class Load(Part, frozen=True, kw_only=True):
    """How loaded a machine was, of so many cores of the run: before the measured window, and during it."""

    cores: FromOne
    kernel_seen: bool = True
    before: LoadOf | None = None
    during: LoadOf | None = None


class Node(Part, frozen=True, kw_only=True):
    """One machine of the allocation."""

    name: Text | None = None
    hostname: Name
    cores: tuple[Whole, ...] = ()
    gpus: tuple[Gpu, ...]
    gpus_seen: Texts | None = None
    cpu_model: Name | None = None
    machine_cores: MachineCores | None = None
    memory_bytes: Whole | None = None
    network: tuple[Interface, ...] | None = None
    driver_version: Text | None = None
    stage: Stage | None = None
    image_s: Real | None = None
    load: Load | UnsetType | None = UNSET
    """Absent in a record of a version that did not watch."""


class Link(Part, frozen=True, kw_only=True):
    """The names of two nodes, of which the first one sent to the other."""

    from_: Text = field(name="from")
    to: Text


class Preflight(Part, frozen=True, kw_only=True):
    """What the nodes found about the network between them, before anything was staged."""

    seconds: Annotated[Real | None, Column("preflight_s")] = None
    pairs: Whole | None = None
    connect_ms_max: Real | None = None
    all_reduce_ms: Real | None = None
    rate_mbit_median: Real | None = None
    rate_mbit_min: Real | None = None
    slowest: Link | None = None
    findings: Annotated[Texts | None, Column("network_findings")] = None


class StepSeconds(Part, frozen=True, kw_only=True):
    """Order statistics of the step times."""

    n: Annotated[FromOne, Column("step_n")]
    p50: Annotated[Real, Column("step_p50_s")]
    p90: Annotated[Real, Column("step_p90_s")]
    p95: Annotated[Real, Column("step_p95_s")]
    p99: Annotated[Real, Column("step_p99_s")]
    mean: Annotated[Real, Column("step_mean_s")]
    stdev: Annotated[Real | None, Column("step_stdev_s")] = None
    mad: Annotated[Real | None, Column("step_mad_s")] = None
    min: Annotated[Real, Column("step_min_s")]
    max: Annotated[Real, Column("step_max_s")]


class Drift(Part, frozen=True, kw_only=True):
    """How far a line through the steps' seconds changes across the window, in parts of their mean, and how uncertain that is (drift.py)."""

    change_ratio: Annotated[Signed | None, Column("drift_change_ratio")] = None
    stderr_ratio: Real | None = None
    others_ratio: Annotated[
        Annotated[tuple[Signed, ...], Meta(min_length=8, max_length=8, extra=_words("a list of 8 numbers"))] | None,
        Column("drift_others_ratio"),
    ] = None
    steps: FromOne | None = None


class Performance(Part, frozen=True, kw_only=True):
    """Over the measured window; a step is as long as its slowest rank's. Without `samples` it is of a version whose `samples_per_s` was the
    global batch / the median step, and whose `straggler_rank` was an arbitrary one: readers take samples / `window_s`, and no straggler."""

    num_measured_steps: Annotated[FromOne, Column()]
    num_warmup_steps: Annotated[Whole | None, Column()] = None
    samples: Annotated[Whole | None, Column()] = None
    samples_reported: Annotated[Whole | None, Column()] = None
    assumed: Annotated[tuple[Literal["samples", "steps"], ...] | None, Column()] = None
    step_s: StepSeconds
    steps_together: Annotated[FromOne | None, Column()] = None
    input_wait_s_mean: Annotated[Real | None, Column("input_wait_mean_s")] = None
    first_step_s: Annotated[Real | None, Column()] = None
    window_s: Annotated[Real | None, Column()] = None
    window_steps_ratio: Annotated[Real | None, Column()] = None
    samples_per_s: Annotated[Real | None, Column("told_samples_per_s")] = None
    samples_per_s_per_gpu: Real | None = None
    tokens: Annotated[Whole | None, Column()] = None
    tokens_by_length: tuple[tuple[FromOne, Whole], ...] | None = None
    tokens_per_s: Annotated[Real | None, Column("told_tokens_per_s")] = None
    tokens_per_s_per_gpu: Real | None = None
    rate_to_median_ratio: Annotated[Real | None, Column()] = None
    uneven_cause: Annotated[Literal["input", "stalls", "stragglers", "gaps"] | None, Column()] = None
    rank_skew_p95_ratio: Annotated[Real | None, Column()] = None
    straggler_rank: Annotated[Whole | None, Column()] = None
    drift_ratio: Annotated[Real | None, Column()] = None
    drift: Drift | None = None
    last_half_ratio: Annotated[Real | None, Column()] = None
    first_steps_ratio: Annotated[Real | None, Column()] = None


class WindowSeen(Part, frozen=True, kw_only=True):
    """The window that a rank tells of, and how long it was by the clock of its node program: of the rank where these leave most open."""

    rank: Whole | None = None
    window_s: Annotated[Real | None, Column("window_told_s")] = None
    least_s: Annotated[Real | None, Column("window_least_s")] = None
    most_s: Annotated[Real | None, Column("window_most_s")] = None
    together_s: Annotated[Real | None, Column("window_together_s")] = None


class Evaluation(Part, frozen=True, kw_only=True):
    """On the dataset's own split, over all ranks."""

    split: Annotated[Text | None, Column("eval_split")] = None
    loss: Annotated[Signed | None, Column("eval_loss")] = None
    accuracy: Annotated[Share | None, Column("eval_accuracy")] = None
    samples: Annotated[Whole | None, Column("eval_samples")] = None


class Replicas(Part, frozen=True, kw_only=True):
    """Whether the ranks ended with the same parameters: the checksum that most ranks told, of a tie that of the lowest rank; how many told
    one; and those that told another."""

    checksum: Annotated[Text, Column("parameter_checksum")]
    ranks: Annotated[FromOne, Column("checksum_ranks")]
    apart: Annotated[tuple[Rank, ...], Column("ranks_apart")]


class Training(Part, frozen=True, kw_only=True):
    """What the training came to."""

    final_loss: Annotated[Signed | None, Column()] = None
    first_loss: Annotated[Signed | None, Column()] = None
    first_losses: Annotated[Pairs | None, Column()] = None
    losses: Pairs | None = None
    eval: Evaluation | None = None
    parameters: Annotated[Whole | None, Column()] = None
    parameter_norm: Annotated[Signed | None, Column()] = None
    replicas: Replicas | None = None
    late_ranks: Annotated[tuple[Rank, ...] | None, Column()] = None
    flop_per_unit: Annotated[Flop | None, Column("told_flop_per_unit")] = None
    precision: Annotated[Literal["fp32", "tf32", "bf16", "fp16"] | None, Column("told_precision")] = None
    train_s: Annotated[Real | None, Column("training_s")] = None
    eval_s: Annotated[Real | None, Column("evaluation_s")] = None
    peak_memory_bytes: Annotated[Whole | None, Column()] = None


class ResumedFrom(Part, frozen=True, kw_only=True):
    """The attempt whose checkpoint this one went on from."""

    attempt: Annotated[FromOne, Column("resumed_attempt")]
    step: Annotated[Whole, Column("resumed_step")]
    used_s: Annotated[Real, Column("used_before_s")]


class Checkpoint(Part, frozen=True, kw_only=True):
    """The checkpoint among the attempt's files: the first step that is not in it."""

    step: Annotated[Whole | None, Column("checkpoint_step")] = None
    bytes: Annotated[Whole | None, Column("checkpoint_bytes")] = None


class Dataset(Part, frozen=True, kw_only=True):
    """The dataset as it was staged; of a tree of files nobody knows the samples."""

    name: Text | None = None
    digest: Annotated[Digest | None, Column("dataset_digest")] = None
    samples: Annotated[Whole | None, Column("dataset_samples")] = None
    bytes: Annotated[Whole | None, Column("dataset_bytes")] = None


class Provenance(Part, frozen=True, kw_only=True):
    """What the run was made of; a program may add keys of its own."""

    slipway_version: Annotated[Told | None, Column()] = None
    git_sha: Annotated[Told | None, Column()] = None
    git_dirty: Annotated[Told | None, Column()] = None
    python: Annotated[Told | None, Column()] = None
    framework: Told | None = None
    framework_version: Annotated[Told | None, Column()] = None
    torch_version: Annotated[Told | None, Column()] = None
    cuda_version: Annotated[Told | None, Column()] = None
    cudnn_version: Annotated[Told | None, Column()] = None
    nccl_version: Annotated[Told | None, Column()] = None
    driver_version: Annotated[Told | None, Column()] = None
    image: Annotated[Told | None, Column()] = None
    image_digest: Annotated[Told | None, Column()] = None
    program_digest: Annotated[Told | None, Column()] = None
    tf32: Annotated[Told | None, Column()] = None
    cudnn_benchmark: Annotated[Told | None, Column()] = None
    cudnn_deterministic: Annotated[Told | None, Column()] = None
    deterministic_algorithms: Annotated[Told | None, Column()] = None
    os: Annotated[Told | None, Column()] = None
    kernel: Annotated[Told | None, Column()] = None
    gpu_memory_bytes: Annotated[Whole | None, Column()] = None


class File(Part, frozen=True, kw_only=True):
    """One pushed file of the attempt; the path is relative to its directory."""

    path: Text
    bytes: Whole
    blake3: Digest


class RunRecord(Part, frozen=True, kw_only=True):
    """One attempt of one run, schema slipway.run/1."""

    schema_: Annotated[Literal["slipway.run/1"], Column("schema")] = field(name="schema")
    run_id: Annotated[Text, Column()]
    study: Annotated[Text | None, Column("record_study")] = None
    cell: Cell
    repeat: Annotated[FromOne, Column()]
    attempt: Annotated[FromOne, Column()]
    result_number: Annotated[FromOne | None, Column()] = None
    status: Annotated[Status, Column()]
    kind: Annotated[Literal["result", "prevented"], Column()]
    status_reason: Annotated[Long | None, Column()] = None
    failed_rank: FailedRank | None = None
    failed_nodes: Texts = ()
    time: Times
    run_s: Annotated[Real, Column()]
    steps_s: Steps
    scheduler: Annotated[Text | None, Column()] = None
    scheduler_version: Annotated[Text | None, Column()] = None
    job_id: Annotated[Text | None, Column()] = None
    restart_count: Annotated[Whole | None, Column()] = None
    site: Annotated[Text | None, Column()] = None
    engine: Annotated[Text | None, Column()] = None
    exclusive: Annotated[bool | None, Column()] = None
    oversubscribed: Annotated[bool | None, Column()] = None
    busy: Annotated[Texts | None, Column()] = None
    nodes: tuple[Node, ...]
    world_size: Annotated[FromOne, Column()]
    device: Annotated[Literal["cpu", "cuda"], Column()]
    threads_per_rank: Annotated[FromOne, Column()]
    steps_source: Annotated[Literal["program", "log", "none"] | None, Column()] = None
    preflight: Preflight | None = None
    performance: Performance | None = None
    training: Training | None = None
    window_seen: WindowSeen | None = None
    resumed_from: ResumedFrom | None = None
    checkpoint: Checkpoint | None = None
    dataset: Dataset | None = None
    model_macs: Annotated[Whole | None, Column()] = None
    model_first_macs: Annotated[Whole | None, Column()] = None
    provenance: Provenance
    warnings: Annotated[Texts | None, Column()] = None
    files: tuple[File, ...] | None = None
    seal: Annotated[Digest | None, Column()] = None


def validate_record(value: Any, where: str = "the record") -> RunRecord:
    """Return the record in `value`, as JSON gives it. Raises RecordError for one that readers do not believe, that has keys which this
    version does not write, or whose steps do not add up."""
    from workflow.run.record.reading import decoded

    try:
        record = decoded(json.dumps(value).encode())
        unknown = next(_unknown(value, msgspec.to_builtins(record)), None)
        if unknown is not None:
            raise NotBelieved(f"unknown key {unknown}")
        if (record.status == "ok") != (record.status_reason is None):
            raise NotBelieved(f"its status is {record.status}, and its status_reason {record.status_reason!r}")
        steps = {entry.name: getattr(record.steps_s, entry.name) or 0.0 for entry in msgspec.structs.fields(Steps)}
        total = sum(seconds for step, seconds in steps.items() if step not in BESIDE)
        if abs(total - record.run_s) > max(CLOSING_RATIO * record.run_s, CLOSING_S):
            raise NotBelieved(f"stage to release add up to {total:g} s, run_s is {record.run_s:g} s")
    except ValueError as error:
        raise RecordError(f"{where} is not a valid record: {error}") from error
    return record


def _unknown(value: Any, known: Any, path: str = "") -> Iterator[str]:
    """Yield the keys of a value that are not in what was read of it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in known:
                yield f"{path}{key}"
            elif key not in OPEN:
                yield from _unknown(inner, known[key], f"{path}{key}.")
    elif isinstance(value, list):
        for place, (inner, read) in enumerate(zip(value, known, strict=True)):
            yield from _unknown(inner, read, f"{path.rstrip('.')}[{place}].")


def schema_text() -> str:
    """Return the JSON Schema as the text of its file."""
    schema = msgspec.json.schema(RunRecord)
    for part in schema["$defs"].values():
        if part["title"] != Provenance.__name__:
            part["additionalProperties"] = False
    text = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1, ensure_ascii=False, sort_keys=True)
    return text + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the schema, or check. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.record.model", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is not current")
    parser.add_argument("--validate", nargs="+", type=Path, metavar="FILE", help="check these records")
    options = parser.parse_args(arguments)
    if options.validate:
        return _validate(options.validate)
    current = SCHEMA_FILE.exists() and SCHEMA_FILE.read_text(encoding="utf-8") == schema_text()
    if options.check and not current:
        sys.stderr.write(f"{SCHEMA_FILE} is not what the model says; `make schemas` writes it\n")
    elif not current:
        SCHEMA_FILE.parent.mkdir(parents=True, exist_ok=True)
        publish(SCHEMA_FILE, schema_text().encode())
    return int(options.check and not current)


def _validate(paths: Sequence[Path]) -> int:
    wrong = 0
    for path in paths:
        try:
            validate_record(read_sealed(path), str(path))
        except RecordError as error:
            sys.stderr.write(f"{error}\n")
            wrong += 1
    return RecordError.exit_code if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
