"""The parts of the record's model, from the cell to the list of files. Closed: an unknown key is an error."""

from __future__ import annotations

import collections.abc
import types
import typing
from dataclasses import MISSING, fields
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from base.typed import Check
from workflow.study import cell

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
FromOne = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """Closed: an unknown key is an error, in every part."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _for_pydantic(kind: Any) -> Any:
    """A type of base/typed.py, as pydantic reads it."""
    inner = get_args(kind)
    match get_origin(kind):
        case origin if origin is Annotated:
            bounds = [Field(ge=check.least, le=check.most) for check in inner[1:] if isinstance(check, Check)]
            return Annotated[(_for_pydantic(inner[0]), *bounds)] if bounds else _for_pydantic(inner[0])
        case types.UnionType | typing.Union:
            return typing.Union[tuple(map(_for_pydantic, inner))]  # noqa: UP007 - the members are known at run time only
        case collections.abc.Mapping:
            return dict[str, _for_pydantic(inner[1])]  # type: ignore[misc]
    return kind


if TYPE_CHECKING:
    Cell = cell.Cell
else:
    _KINDS = get_type_hints(cell.Cell, include_extras=True)
    Cell = create_model(
        "Cell",
        __base__=Part,
        __doc__="The point of the matrix, under the study's own names.",
        **{
            field.name: (_for_pydantic(_KINDS[field.name]), ... if field.default is MISSING else field.default)
            for field in fields(cell.Cell)
        },
    )


class FailedRank(Part):
    """The first rank that failed, or the sidecar. Neither code nor signal: it hangs."""

    rank: Count | None
    host: str
    exit_code: Count | None
    signal: str | None
    last_lines: str
    sidecar: str | None = None


class Times(Part):
    """Wall clock, ISO 8601 with its zone."""

    start: str
    end: str

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        start, end = (datetime.fromisoformat(text) for text in (self.start, self.end))
        if start.tzinfo is None or end.tzinfo is None or end < start:
            raise ValueError(f"start {self.start} and end {self.end} must have a zone, and be in this order")
        return self


class Steps(Part):
    """Seconds of the seven steps; null: not reached, or not known."""

    login: Seconds | None
    assign: Seconds | None
    stage: Seconds | None
    train: Seconds | None
    result: Seconds | None
    push: Seconds | None
    release: Seconds | None


class Gpu(Part):
    """One GPU that was granted."""

    uuid: str
    model: str | None


class Stage(Part):
    """What staging did on a node: of the copied bytes, those read from storage and those that other nodes sent; and those read back from
    the node's own disk and hashed."""

    bytes: Count
    copied_bytes: Count
    storage_bytes: Count | None = None
    peer_bytes: Count | None = None
    checked_bytes: Count | None = None
    hit: bool
    seconds: Seconds


class MachineCores(Part):
    """Of a whole machine: packages, cores, hardware threads."""

    sockets: Count
    cores: Count
    cpus: Count


class Interface(Part):
    """What connects a machine to others; without a rate where its kernel knows none."""

    name: str
    kind: str
    mbit_per_s: Count | None


Ratio = Annotated[float, Field(ge=0, le=1)]


class Busiest(Part):
    """Somebody else who used the run's cores: command and user."""

    name: str
    cores: Seconds


class GpuLoad(Part):
    """One GPU: means of the looks within the time that is meant, the rest of those around it too."""

    uuid: str
    looks: Count
    mhz_mean: Seconds | None
    max_mhz: Seconds | None
    celsius_max: Seconds | None
    watts_mean: Seconds | None
    busy_ratio_mean: Ratio | None
    throttled: list[str] | None
    ecc_errors: Count | None
    others_max: Count | None


class LoadOf(Part):
    """What a machine did in some seconds, of the cores of the run."""

    seconds: Seconds
    others_cores: Seconds | None
    own_cores: Seconds
    kernel_cores: Seconds | None
    interrupt_cores: Seconds
    steal_ratio: Ratio
    busiest: list[Busiest]
    voluntary_switches_per_s: Seconds | None
    involuntary_switches_per_s: Seconds | None
    major_faults: Count | None
    cpu_wait_ratio: Ratio | None
    memory_wait_ratio: Ratio | None
    memory_stall_ratio: Ratio | None
    io_wait_ratio: Ratio | None
    io_stall_ratio: Ratio | None
    available_bytes_min: Count | None
    swapped_in_bytes: Count | None
    swapped_out_bytes: Count | None
    mhz_mean: Seconds | None
    mhz_min: Seconds | None
    throttle_events: Count | None
    gpus: list[GpuLoad] | None


class Load(Part):
    """How loaded a machine was, of so many cores of the run: before the measured window, and during it."""

    cores: FromOne
    kernel_seen: bool = True
    before: LoadOf | None
    during: LoadOf | None


class Node(Part):
    """One machine of the allocation."""

    name: str
    hostname: str
    cores: list[Count]
    gpus: list[Gpu]
    gpus_seen: list[str] | None = None
    cpu_model: str | None
    machine_cores: MachineCores | None = None
    memory_bytes: Count | None
    network: list[Interface] | None = None
    driver_version: str | None = None
    stage: Stage | None
    image_s: Seconds | None = None
    load: Load | None = None


class Link(Part):
    """From one node to another, by name."""

    from_: Annotated[str, Field(alias="from")]
    to: str


class Preflight(Part):
    """What the nodes found about the network between them, before anything was staged."""

    seconds: Seconds | None
    pairs: Count
    connect_ms_max: Seconds | None
    all_reduce_ms: Seconds | None
    rate_mbit_median: Seconds | None
    rate_mbit_min: Seconds | None
    slowest: Link | None
    findings: list[str]


class StepSeconds(Part):
    """Order statistics of the step times."""

    n: FromOne
    p50: Seconds
    p90: Seconds
    p95: Seconds
    p99: Seconds
    mean: Seconds
    stdev: Seconds | None
    mad: Seconds
    min: Seconds
    max: Seconds


class Drift(Part):
    """How far a line through the steps' seconds changes across the window, in parts of their mean, and how uncertain that is (drift.py)."""

    change_ratio: Finite
    stderr_ratio: Seconds
    others_ratio: Annotated[list[Finite], Field(min_length=8, max_length=8)]
    steps: FromOne


class Performance(Part):
    """Over the measured window; a step is as long as its slowest rank's. Without `samples` it is of a version whose `samples_per_s` was the
    global batch / the median step, and whose `straggler_rank` was an arbitrary one: readers take samples / `window_s`, and no straggler."""

    num_measured_steps: FromOne
    num_warmup_steps: Count
    samples: Count | None = None
    samples_reported: Count | None = None
    assumed: list[Literal["samples", "steps"]] | None = None
    step_s: StepSeconds
    steps_together: FromOne = 1
    input_wait_s_mean: Seconds | None
    first_step_s: Seconds | None
    window_s: Seconds
    window_steps_ratio: Seconds | None
    samples_per_s: Seconds | None
    samples_per_s_per_gpu: Seconds | None
    tokens: Count | None = None
    tokens_by_length: list[tuple[FromOne, Count]] | None = None
    tokens_per_s: Seconds | None = None
    tokens_per_s_per_gpu: Seconds | None = None
    rate_to_median_ratio: Seconds | None = None
    uneven_cause: Literal["input", "stalls", "stragglers", "gaps"] | None = None
    rank_skew_p95_ratio: Seconds | None
    straggler_rank: Count | None
    drift_ratio: Seconds | None
    drift: Drift | None = None
    last_half_ratio: Seconds | None = None
    first_steps_ratio: Seconds | None = None


class WindowSeen(Part):
    """The window that a rank tells of, and how long it was by the clock of its node program: of the rank where these leave most open."""

    rank: Count
    window_s: Seconds
    least_s: Seconds | None
    most_s: Seconds | None
    together_s: Seconds | None = None


class Evaluation(Part):
    """On the dataset's own split, over all ranks."""

    split: str
    loss: Finite | None
    accuracy: Annotated[float, Field(ge=0, le=1)] | None
    samples: Count | None


class Replicas(Part):
    """Whether the ranks ended with the same parameters."""

    checksum: str
    ranks: FromOne
    apart: list[Count]


class Training(Part):
    """What the training came to."""

    final_loss: Finite | None
    first_loss: Finite | None
    first_losses: list[tuple[Count, Finite]] | None = None
    losses: list[tuple[Count, Finite]]
    eval: Evaluation | None
    parameters: Count | None
    parameter_norm: Finite | None
    replicas: Replicas | None = None
    late_ranks: list[Count] | None = None
    flop_per_unit: Finite | None = None
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = None
    train_s: Seconds | None
    eval_s: Seconds | None
    peak_memory_bytes: Count | None


class ResumedFrom(Part):
    """The attempt whose checkpoint this one went on from."""

    attempt: FromOne
    step: Count
    used_s: Seconds


class Checkpoint(Part):
    """The checkpoint among the attempt's files: the first step that is not in it."""

    step: Count
    bytes: Count


class Dataset(Part):
    """The dataset as it was staged; of a tree of files nobody knows the samples."""

    name: str
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    samples: Count | None
    bytes: Count


class File(Part):
    """One pushed file of the attempt; the path is relative to its directory."""

    path: str
    bytes: Count
    blake3: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
