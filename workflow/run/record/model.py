"""Define the record of one attempt, schema `slipway.run/1`, as one tree of types. Null: not measured.

Everything that knows the keys of a record follows from this tree: readers decode into it, the columns of the tables are the fields that
carry a `Column`, and the JSON Schema and the tables of docs/reference/record.md are made of it. The words after a field are its unit or
type, and its meaning. A key that a type does not know was written by another version: readers pass over it.
"""

import types
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from base.jsonfile import MAX_INTEGER
from workflow.study.cell import Cell

SCHEMA_NAME: Final[Literal["slipway.run/1"]] = "slipway.run/1"
Kind = Literal["result", "prevented"]
Status = Literal["ok", "oom", "nan", "timeout", "hang", "error", "killed", "node_lost", "storage", "preempted", "cancelled"]


OwnKeys = dict[str, Any]
"""A record as JSON, or an object in it with keys that are not ours."""


@dataclass(frozen=True)
class Column:
    """A mark for `Annotated`: the field is a column of records.parquet, under this name, or under its own."""

    name: str = ""


Real = Annotated[float, Meta(ge=0, le=1e15)]
Flop = Annotated[float, Meta(ge=0, le=1e30)]
Signed = Annotated[float, Meta(ge=-1e100, le=1e100)]
Share = Annotated[float, Meta(ge=0, le=1)]
Whole = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
FromOne = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Rank = Annotated[int, Meta(ge=0, le=2**31)]
Name = Annotated[str, Meta(max_length=255)]
Text = Annotated[str, Meta(max_length=4096)]
Long = Annotated[str, Meta(max_length=65536)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Texts = tuple[Long, ...]
Pairs = tuple[tuple[Whole, Signed], ...]
SlowPart = Literal["input", "copy", "compute", "host"]
Rapl = Literal["read", "not permitted", "none"]
UnevenCause = Literal["input", "stalls", "stragglers", "gaps"]
Reported = Text | int | float | bool
"""What a program tells of itself; a column has its text."""


class Part(Struct, frozen=True):
    """An object of the record. What it says of a field is checked by whoever makes one of JSON."""


class FailedRank(Part, frozen=True, kw_only=True):
    """The first process that failed: a rank, a sidecar or a launcher. Where exit code and signal are both null, the rank hangs."""

    rank: Annotated[Whole | None, Column("failed_rank")] = None
    """from 0, or null | null for a sidecar, and for a torchrun"""
    host: Annotated[Text | None, Column("failed_host")] = None
    """text | node name"""
    exit_code: Annotated[Whole | None, Column("failed_exit_code")] = None
    """number or null | null for a signal, and for a rank that hangs"""
    signal: Annotated[Text | None, Column("failed_signal")] = None
    """text or null | such as `SIGKILL`"""
    last_lines: Annotated[Long | None, Column("failed_last_lines")] = None
    """text | at most 20 lines of its output, what looks like secrets masked"""
    sidecar: Text | UnsetType | None = UNSET
    """text or null | name of the sidecar, if it was one; `torchrun`, if that failed or was killed itself"""


class Times(Part, frozen=True, kw_only=True):
    """Wall clock, ISO 8601 with its zone."""

    start: Annotated[Text, Column("start")]
    """ISO 8601, UTC | start of the supervisor; making of the record. Durations below are by the monotonic clock"""
    end: Annotated[Text, Column("end")]


class Steps(Part, frozen=True, kw_only=True):
    """Seconds of the seven steps; null: not reached, or not known."""

    login: Annotated[Real | None, Column("login_s")] = None
    """s or null | from the start of the command until the study is checked and planned, or until `slipway submit` has handed over its
    job; with `slipway remote` from its start on the laptop. The same for all runs of one start, and beside the sum. null: in records
    of earlier versions, and if a supervisor was started by hand"""
    assign: Annotated[Real | None, Column("assign_s")] = None
    """s | from submission to the start of the job, as the scheduler says; on this machine waiting until no other run measures. Beside
    the sum"""
    stage: Annotated[Real | None, Column("stage_s")] = None
    """s | `stage`: start-up, and the dataset to the nodes. `train`: the program. `result`: stopping and collecting. `push`: copying
    to storage. `release`: dropping the lease"""
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
    """text, number | id of a GPU; how often nvidia-smi reported it in the window, after the first second: every 2 s, or as seldom as
    keeps its cost at 2 % of the time. Means are over these reports; maxima and events include the reports around the window"""
    looks: Whole
    mhz_mean: Real | None = None
    """MHz | clock of its processors, and the highest that it has"""
    max_mhz: Real | None = None
    celsius_max: Real | None = None
    """°C, W, ratio | temperature, power, part of the time in which it worked"""
    watts_mean: Real | None = None
    busy_ratio_mean: Share | None = None
    throttled: Texts | None = None
    """list of words, or null | why its clock was lower, in any report: `power cap`, `hardware slowdown`, `sync boost`, `heat
    (driver)`, `heat (hardware)`, `power brake`"""
    ecc_errors: Whole | None = None
    """number | uncorrected errors of its memory since the first report"""
    others_max: Whole | None = None
    """number or null | the most processes of others on it; null if nvidia-smi lists none"""
    energy_j: Real | None = None
    """J or null | energy of the window, by the GPU's own counter: mean power of the reports times the length of the window. null: the
    reports cover less than half of it, or the GPU has no counter, such as a MIG instance"""


class LoadOf(Part, frozen=True, kw_only=True):
    """What a machine did in some seconds, of the cores of the run."""

    seconds: Real
    """s | from the first report to the last"""
    others_cores: Real | None = None
    """cores | busy cores of the run that neither the run, the kernel's threads, interrupts nor `steal_ratio` explain (`/proc/stat`).
    A negative result counts as 0; null if `kernel_seen` is false"""
    own_cores: Real | None = None
    """cores | cores that the run's processes used: node program, supervisor, ranks and everything they started, also ended ones, and
    processes above them such as Snakemake (`/proc/PID/stat`)"""
    kernel_cores: Real | None = None
    """cores | cores that the kernel's own threads used; that interrupts used"""
    interrupt_cores: Real | None = None
    steal_ratio: Share | None = None
    """ratio | part of the cores' time that the host of a virtual machine took"""
    busiest: tuple[Busiest, ...] = ()
    """list of `name`, `cores` | who of others used most, as `python3 of alice`; at most 3"""
    major_faults: Whole | None = None
    """number | pages read from a disk for the run's processes, as when a dataset is read by mapping it"""
    cpu_wait_ratio: Share | None = None
    """ratio | part of the time in which some task of the machine waited for it; `memory_stall_ratio`, `io_stall_ratio`: in which all
    tasks did (`total` in `/proc/pressure`)"""
    memory_wait_ratio: Share | None = None
    io_wait_ratio: Share | None = None
    memory_stall_ratio: Share | None = None
    io_stall_ratio: Share | None = None
    available_bytes_min: Whole | None = None
    """bytes | least available memory (`MemAvailable`)"""
    swapped_in_bytes: Whole | None = None
    """bytes | bytes swapped in and out (`/proc/vmstat`)"""
    swapped_out_bytes: Whole | None = None
    throttle_events: Whole | None = None
    """number | how often heat slowed a core down (`core_throttle_count`)"""
    gpus: tuple[GpuLoad, ...] | None = None
    """list or null | the run's GPUs; null without GPUs, or if nvidia-smi reported nothing"""
    package_j: Real | None = None
    """J or null | energy of the window of all processors of the machine and their memory, whoever used them, by RAPL"""


class Load(Part, frozen=True, kw_only=True):
    """How loaded a machine was, of so many cores of the run, during the measured window."""

    cores: FromOne
    kernel_seen: bool = True
    rapl: Rapl | None = None
    """word or null | whether the energy of the processors could be read: `read`, `not permitted` (most machines let only root),
    `none`; null in records of earlier versions"""
    during: LoadOf | None = None


class Node(Part, frozen=True, kw_only=True):
    """One machine of the allocation."""

    name: Text | None = None
    """text |"""
    hostname: Name
    cores: tuple[Whole, ...] = ()
    """list of numbers | CPU numbers the run was bound to; empty = as granted"""
    gpus: tuple[Gpu, ...]
    """list of `uuid`, `model` | what the scheduler granted"""
    gpus_seen: Texts | None = None
    """list of UUIDs, or null | the GPUs that `nvidia-smi` lists in the container. GPUs beyond the grant, which apptainer, enroot and
    pyxis may show, are in `warnings` too. null without a container, or without GPUs"""
    cpu_model: Name | None = None
    """text, bytes |"""
    memory_bytes: Whole | None = None
    machine_cores: MachineCores | None = None
    """object or null | `sockets`, `cores` and `cpus` (hardware threads) of the whole machine, whatever the run had of it"""
    network: tuple[Interface, ...] | None = None
    """list or null | the machine's connections, at most 64: InfiniBand ports and network cards that are up, with `name`, `kind`
    (`InfiniBand`, `RDMA over Ethernet`, `Ethernet`) and `mbit_per_s` (null: unknown to its kernel)"""
    driver_version: Text | None = None
    """text or null | version of NVIDIA's kernel module; null if there is none"""
    stage: Stage | None = None
    """object or null | `bytes` of the dataset, `copied_bytes` now, of them `storage_bytes` from storage and `peer_bytes` from other
    nodes; `checked_bytes` read back from the node's disk and hashed; `hit` (it was there), `seconds`. null if the cell has no
    dataset, or the node did not get it"""
    image_s: Real | None = None
    """s or null | time until the node had the pinned image, part of `steps_s.stage`; null without one"""
    load: Load | UnsetType | None = UNSET
    """object or null | load of the machine: below. null if its file is missing, if the attempt did not end `ok`, and in records of
    earlier versions"""


class Link(Part, frozen=True, kw_only=True):
    """The names of two nodes, of which the first one sent to the other."""

    from_: Text = field(name="from")
    to: Text


class Preflight(Part, frozen=True, kw_only=True):
    """What the nodes found about the network between them, before anything was staged."""

    seconds: Annotated[Real | None, Column("preflight_s")] = None
    """s | all of it; part of `steps_s.stage`"""
    pairs: Whole | None = None
    """number | ordered pairs of nodes; every pair connects"""
    connect_ms_max: Real | None = None
    """ms | the longest connection"""
    rate_mbit_median: Annotated[Real | None, Column("network_mbit")] = None
    """Mbit/s | rates of the ordered pairs that exchanged data, both directions at once: median and least"""
    rate_mbit_min: Real | None = None
    slowest: Link | None = None
    """`from`, `to` | names of the nodes with the least rate"""
    findings: Annotated[Texts | None, Column("network_findings")] = None
    """list of text | what is wrong; also among the warnings"""


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
    """How far a line through the steps' seconds changes across the window, in parts of their mean, and how uncertain that is (rate.py)."""

    change_ratio: Annotated[Signed | None, Column("drift_change_ratio")] = None
    stderr_ratio: Real | None = None
    others_ratio: Annotated[
        Annotated[tuple[Signed, ...], Meta(min_length=8, max_length=8)] | None,
        Column("drift_others_ratio"),
    ] = None
    steps: FromOne | None = None


class StepParts(Part, frozen=True, kw_only=True):
    """The parts of the mean step, over ranks and measured steps. A part that not every rank told of each of these steps is null, and is in
    `other_s`."""

    input_s: Annotated[Real | None, Column("part_input_s")] = None
    """s or null | waiting for the batch"""
    copy_s: Annotated[Real | None, Column("part_copy_s")] = None
    """s or null | moving the batch to the device"""
    forward_s: Annotated[Real | None, Column("part_forward_s")] = None
    """s or null | forward pass and loss; backward pass, without waiting for other ranks"""
    backward_s: Annotated[Real | None, Column("part_backward_s")] = None
    exposed_s: Annotated[Real | None, Column("part_exposed_s")] = None
    """s or null | communication that nothing hides: in each step the least `exchange_s` of all ranks"""
    skew_s: Annotated[Real | None, Column("part_skew_s")] = None
    """s or null | waiting for a slower rank: the rank's `exchange_s` less `exposed_s`"""
    optimizer_s: Annotated[Real | None, Column("part_optimizer_s")] = None
    """s or null | the update of the parameters"""
    other_s: Annotated[Signed, Column("part_other_s")]
    """s | `step_s` less the sum of the reported parts. It is negative if parts overlap, or if the clocks of parts and steps differ"""
    step_s: Annotated[Real, Column("part_step_s")]
    """s | the mean step, each rank's own"""


class WhatIf(Part, frozen=True, kw_only=True):
    """How long the mean step would be if a part took no time on any rank, or nobody waited for a slower rank."""

    step_s: Annotated[Real, Column("if_step_s")]
    """s | the mean step as it was: longest own work of a rank, and exposed communication"""
    no_input_s: Annotated[Real | None, Column("if_no_input_s")] = None
    """s or null | without waiting for batches; without moving them to the device"""
    no_copy_s: Annotated[Real | None, Column("if_no_copy_s")] = None
    no_exposed_s: Annotated[Real | None, Column("if_no_exposed_s")] = None
    """s or null | `no_exposed_s`: without exposed communication. `no_skew_s`: if `straggler_rank` was as fast as the others, or all
    ranks worked as long as their mean; the smaller of the two. `no_other_s`: without time that is in no part"""
    no_skew_s: Annotated[Real | None, Column("if_no_skew_s")] = None
    no_other_s: Annotated[Real | None, Column("if_no_other_s")] = None
    slow_part: Annotated[SlowPart | None, Column()] = None
    """word or null | the part in which `straggler_rank` is slower than the others by most: `input`, `copy`, `compute`, or `host` for
    time in no part; null without such a rank, or if parts are not known"""


class Performance(Part, frozen=True, kw_only=True):
    """The numbers of the measured window; a step is as long as its slowest rank's. Without `samples` it is of a version whose
    `samples_per_s` was the global batch / the median step, and whose `straggler_rank` was an arbitrary one: readers take samples /
    `window_s`, and no straggler."""

    num_measured_steps: Annotated[FromOne, Column()]
    """steps | number of steps in the window, and before it"""
    num_warmup_steps: Annotated[Whole | None, Column()] = None
    samples: Annotated[Whole | None, Column()] = None
    """number | samples of all ranks in the window, as they reported them, at most those that the cell asks for; null in records of an
    older version"""
    samples_reported: Annotated[Whole | None, Column()] = None
    """number | samples that the ranks reported; null in records of an older version"""
    assumed: Annotated[tuple[Literal["samples", "steps"], ...] | None, Column()] = None
    """list of `samples`, `steps` | counts of the rate that no program reported. `samples`: `batch_size` of the cell counts instead.
    `steps`: `every` of the program counts for lines without a number. null in records of an older version"""
    step_s: StepSeconds
    """s | `n`, `p50`, `p90`, `p95`, `p99`, `mean`, `stdev` (sample), `mad` (median distance from the median), `min`, `max`"""
    steps_together: Annotated[FromOne | None, Column()] = None
    """steps | the most steps that one line of a program's output reported; 1 if each step was reported by itself. Above 1, `step_s`
    and `drift` are statistics of means (`step_s.n` of them)"""
    input_wait_s_mean: Annotated[Real | None, Column("input_wait_mean_s")] = None
    """s | time that a step waits for its batch, mean over ranks and steps"""
    first_step_s: Annotated[Real | None, Column()] = None
    """s | step 0 of the slowest rank. null if steps were read from output"""
    window_s: Annotated[Real | None, Column()] = None
    """s | wall time of the window, the longest of all ranks, each by its own clock; not shorter than the rank's steps together"""
    evaluation_s: Annotated[Real | None, Column("window_evaluation_s")] = None
    """s | time of evaluations between steps of the window, the most of all ranks. It is in none of these numbers. null in records of
    earlier versions"""
    window_steps_ratio: Annotated[Real | None, Column()] = None
    """ratio | sum of a rank's steps / wall time of its window, both from its `run_stop`; of the rank whose ratio is furthest from
    1"""
    samples_per_s: Annotated[Real | None, Column("told_samples_per_s")] = None
    """1/s | `samples` / `window_s`; in inference the sum over the ranks of own samples / own window. In records without `samples`:
    global batch / `step_s.p50`"""
    samples_per_s_per_gpu: Real | None = None
    """1/s | `samples_per_s` / `world_size`"""
    tokens: Annotated[Whole | None, Column()] = None
    """number or null | tokens of all ranks in the window; null unless every rank reported them for each of its steps.
    `cell.program.unit` says whether the rate counts tokens or samples"""
    tokens_by_length: tuple[tuple[FromOne, Whole], ...] | None = None
    """list of `[length, tokens]`, or null | these tokens by the length of their sequences, as Slipway's own programs report them"""
    tokens_per_s: Annotated[Real | None, Column("told_tokens_per_s")] = None
    """1/s | the rates of `tokens`"""
    tokens_per_s_per_gpu: Real | None = None
    rate_to_median_ratio: Annotated[Real | None, Column()] = None
    """ratio | `samples_per_s` / (global batch / `step_s.p50`)"""
    uneven_cause: Annotated[UnevenCause | None, Column()] = None
    """`input`, `stalls`, `stragglers`, `gaps`, or null | main cause of the difference, if `rate_to_median_ratio` is more than 5 %
    from 1"""
    rank_skew_p95_ratio: Annotated[Real | None, Column()] = None
    """ratio | 95th percentile over steps of slowest rank / median rank, by their own work: a step without `exchange_s`, in inference
    the whole step. null for one rank, or if a rank does not report `exchange_s`"""
    straggler_rank: Annotated[Whole | None, Column()] = None
    """rank | the rank whose median own work is at least 10 % longer than the others' in each quarter of the window. null: there is
    none, the window has fewer than 20 steps, or it is not known. In records without `samples` it is an arbitrary rank"""
    drift_ratio: Annotated[Real | None, Column()] = None
    """ratio | median step of the second half of the window / of the first"""
    drift: Drift | None = None
    """object or null | `change_ratio`: how far a straight line through the steps' seconds changes across the window, in parts of
    their mean; `others_ratio`: the same for eight other slow changes, which no drift makes; `stderr_ratio`: their root mean square,
    the standard error of the line; `steps`: the number of steps. null for fewer than 100 measured steps"""
    last_half_ratio: Annotated[Real | None, Column()] = None
    """ratio | rate of the window by its steps / rate of the last half of the steps. null for fewer than 20 steps, as the next one"""
    first_steps_ratio: Annotated[Real | None, Column()] = None
    """ratio | first twentieth of the steps / shortest stretch of as many steps in the last half"""
    parts: StepParts | None = None
    """object or null | parts of a step. null if no part is reported, and in records of earlier versions"""
    what_if: WhatIf | None = None
    """object or null | the step as it would be without a part. null if ranks train together and do not report how long they wait for
    each other, and in records of earlier versions"""


class WindowSeen(Part, frozen=True, kw_only=True):
    """The window that a rank tells of, and how long it was by the clock of its node program: of the rank where these leave most open."""

    rank: Whole | None = None
    window_s: Annotated[Real | None, Column("window_told_s")] = None
    least_s: Annotated[Real | None, Column("window_least_s")] = None
    most_s: Annotated[Real | None, Column("window_most_s")] = None
    together_s: Annotated[Real | None, Column("window_together_s")] = None


class Evaluation(Part, frozen=True, kw_only=True):
    """The last evaluation, on the dataset's own split, over all ranks."""

    split: Annotated[Text | None, Column("eval_split")] = None
    loss: Annotated[Signed | None, Column("eval_loss")] = None
    accuracy: Annotated[Share | None, Column("eval_accuracy")] = None
    samples: Annotated[Whole | None, Column("eval_samples")] = None


class EvaluationAt(Part, frozen=True, kw_only=True):
    """One evaluation of a run, between two steps or after the last one."""

    split: Text | None = None
    """text |"""
    step: Whole
    """number | steps before it"""
    epoch: Real | None = None
    """number or null | epochs before it, as the program reports them"""
    loss: Signed | None = None
    """as in `eval` |"""
    accuracy: Share | None = None
    seconds: Real | None = None
    """s or null | time of the evaluation, as rank 0 reports it"""
    training_s: Real | None = None
    """s or null | from the start of the first step to the end of the last step before it, without evaluations, by the clock of rank 0;
    after a resume with the earlier attempts"""


class Replicas(Part, frozen=True, kw_only=True):
    """The checksums of the parameters that the ranks ended with: the one that most ranks told (of a tie that of the lowest rank), how many
    told one, and the ranks that told another."""

    checksum: Annotated[Text, Column("parameter_checksum")]
    ranks: Annotated[FromOne, Column("checksum_ranks")]
    apart: Annotated[tuple[Rank, ...], Column("ranks_apart")]


class Training(Part, frozen=True, kw_only=True):
    """What the training came to."""

    first_loss: Annotated[Signed | None, Column()] = None
    """number | mean over ranks, of the first and the last step"""
    final_loss: Annotated[Signed | None, Column()] = None
    first_losses: Annotated[Pairs | None, Column()] = None
    """list of `[step, loss]` | losses of the first five steps, which show whether frameworks train the same network"""
    losses: Pairs | None = None
    """list of `[step, loss]` | at most 200, evenly spread"""
    eval: Evaluation | None = None
    """object or null | `split`, `loss`, `accuracy` (0 to 1), `samples` of the evaluation of the whole split. On token sequences loss
    and accuracy are means over tokens, and e to the power of the loss is the perplexity"""
    evaluations: Annotated[Annotated[tuple[EvaluationAt, ...], Meta(max_length=1000)] | None, Column()] = None
    """list or null | every evaluation, at most 1,000: below; null in records of earlier versions"""
    trained_s: Real | None = None
    """s or null | `training_s` that an evaluation at the end of this attempt would have"""
    parameters: Annotated[Whole | None, Column()] = None
    """number or null | trainable parameters, as rank 0 reports them. Another count than the model's makes the run an `error`; a
    missing count leaves a warning"""
    parameter_norm: Annotated[Signed | None, Column()] = None
    """number | Euclidean norm of the trained parameters"""
    replicas: Replicas | None = None
    """object or null | whether the ranks ended with the same parameters: the `checksum` that most of them reported, the number of
    `ranks` that reported one, and `apart`, the ranks with another one. null if no rank reported one"""
    late_ranks: Annotated[tuple[Rank, ...] | None, Column()] = None
    """list of numbers | ranks that ended later than rank 0 and whose output nobody read (`ranks: first`)"""
    flop_per_unit: Annotated[Flop | None, Column("told_flop_per_unit")] = None
    """FLOP, word | FLOP of a sample or token, and their precision, as rank 0 reports them; the model FLOP utilisation uses both"""
    precision: Annotated[Literal["fp32", "tf32", "bf16", "fp16"] | None, Column("told_precision")] = None
    train_s: Annotated[Real | None, Column("training_s")] = None
    """s | of rank 0: all steps with warm-up, or the whole program if it writes no events; evaluation"""
    eval_s: Annotated[Real | None, Column("evaluation_s")] = None
    peak_memory_bytes: Annotated[Whole | None, Column()] = None
    """bytes | the most of all ranks: CUDA allocator, on the CPU resident set"""


class ResumedFrom(Part, frozen=True, kw_only=True):
    """The attempt whose checkpoint this one went on from."""

    attempt: Annotated[FromOne, Column("resumed_attempt")]
    """from 1 | number of the attempt"""
    step: Annotated[Whole, Column("resumed_step")]
    """from 0 | the first step that this attempt did"""
    used_s: Annotated[Real, Column("used_before_s")]
    """s | training of all earlier attempts in the chain (`steps_s.train`); it counts for `limits.walltime`"""


class Checkpoint(Part, frozen=True, kw_only=True):
    """The checkpoint among the attempt's files: the first step that is not in it."""

    step: Annotated[Whole | None, Column("checkpoint_step")] = None
    """step, bytes | the first step that is not in it; its size"""
    bytes: Annotated[Whole | None, Column("checkpoint_bytes")] = None


class Dataset(Part, frozen=True, kw_only=True):
    """The dataset as it was staged; of a tree of files nobody knows the samples."""

    name: Text | None = None
    digest: Annotated[Digest | None, Column("dataset_digest")] = None
    samples: Annotated[Whole | None, Column("dataset_samples")] = None
    bytes: Annotated[Whole | None, Column("dataset_bytes")] = None
    train_samples: Annotated[Whole | None, Column()] = None
    """number or null | samples of the split `train`. null for a tree of files, and in records of earlier versions"""
    check: Text | None = None
    """text or null | `decode` if every image was decoded when the dataset was built, `header` if JPEG files that were kept were not.
    null without images, and in records of earlier versions"""
    statistics_samples: Whole | None = None
    """number or null | number of images of `train` that mean and deviation are computed from; null: all"""


class Provenance(Part, frozen=True, kw_only=True):
    """What the run was made of; a program may add keys of its own."""

    slipway_version: Annotated[Reported | None, Column()] = None
    git_sha: Annotated[Reported | None, Column()] = None
    git_dirty: Annotated[Reported | None, Column()] = None
    python: Annotated[Reported | None, Column()] = None
    framework: Reported | None = None
    framework_version: Annotated[Reported | None, Column()] = None
    torch_version: Annotated[Reported | None, Column()] = None
    cuda_version: Annotated[Reported | None, Column()] = None
    cudnn_version: Annotated[Reported | None, Column()] = None
    nccl_version: Annotated[Reported | None, Column()] = None
    driver_version: Annotated[Reported | None, Column()] = None
    image: Annotated[Reported | None, Column()] = None
    image_digest: Annotated[Reported | None, Column()] = None
    program_digest: Annotated[Reported | None, Column()] = None
    tf32: Annotated[Reported | None, Column()] = None
    cudnn_benchmark: Annotated[Reported | None, Column()] = None
    cudnn_deterministic: Annotated[Reported | None, Column()] = None
    deterministic_algorithms: Annotated[Reported | None, Column()] = None
    os: Annotated[Reported | None, Column()] = None
    kernel: Annotated[Reported | None, Column()] = None
    gpu_memory_bytes: Annotated[Whole | None, Column()] = None


class File(Part, frozen=True, kw_only=True):
    """One pushed file of the attempt; the path is relative to its directory."""

    path: Long
    bytes: Whole
    blake3: Digest


class RunRecord(Part, frozen=True, kw_only=True):
    """One attempt of one run, schema slipway.run/1."""

    schema_: Annotated[Literal["slipway.run/1"], Column("schema")] = field(name="schema")
    """text | `slipway.run/1`"""
    run_id: Annotated[Text, Column()]
    """text | `<cell_id>-r<repeat>`"""
    study: Text | None = None
    """text | name of the study"""
    cell: Cell
    """object | the cell, with the names of the [study file](study-file.md#cell-keys): `cell_id`, `framework`, `mode`, `model`,
    `dataset`, `dataset_spec`, `batch_size`, `global_batch_size`, `nodes`, `gpus_per_node`, `precision`, `layout`, `comm_hook`,
    `strategy`, `backend`, `augmentation`, `dropout`, `reader`, `device`, `threads`, `seed`, `optimizer`, `steps`, `epochs`,
    `parameters`, `save_parameters`; `program` and `args` if it has a program; `parameters_file` {path, bytes, blake3} if it starts
    from a file; `bucket_cap_mb`, `conv_algorithm`, `crop_size`, `evaluate_every` and `input_gradient` unless they have their default;
    `profile` {of, logged} of a profile run: the measured cell, and in how many steps of the warm-up the exchange was logged"""
    repeat: Annotated[FromOne, Column()]
    """from 1 | which repeat of the cell"""
    attempt: Annotated[FromOne, Column()]
    """from 1 | which attempt of the run"""
    result_number: Annotated[FromOne | None, Column()] = None
    """from 1, or null | number of this result among the run's results; null for a prevented attempt"""
    status: Annotated[Status, Column()]
    """word | one of the [ends](errors.md#how-a-run-ends)"""
    kind: Annotated[Kind, Column()]
    """`result`, `prevented` | a result is a row of the tables, and the run is done; a prevented attempt is tried again"""
    status_reason: Annotated[Long | None, Column()] = None
    """text or null | why it did not end `ok`"""
    failed_rank: FailedRank | None = None
    """object or null | the first rank, sidecar or launcher that failed, causes before consequences"""
    failed_nodes: Texts = ()
    """list | nodes that prevented this attempt, by the scheduler's names. The next job of the run avoids them"""
    time: Times
    """object |"""
    run_s: Annotated[Real, Column()]
    """s | from the start of the supervisor to publishing; the steps from stage to release add up to it within 1 %"""
    steps_s: Steps
    """object | seconds of each step; null = not reached"""
    scheduler: Annotated[Text | None, Column()] = None
    """text | who granted the nodes; on this machine `job_id` is the supervisor's process id"""
    scheduler_version: Annotated[Text | None, Column()] = None
    job_id: Annotated[Text | None, Column()] = None
    restart_count: Annotated[Whole | None, Column()] = None
    """number | how often the scheduler restarted the job"""
    site: Annotated[Text | None, Column()] = None
    """text | name of the site file; `bare`, ..."""
    engine: Annotated[Text | None, Column()] = None
    exclusive: Annotated[bool | None, Column()] = None
    """flag or null | whether the scheduler gave the nodes to this job alone. null on this machine, where nobody can promise that.
    false if others worked there during the window, by the limit of the mark `busy`"""
    oversubscribed: Annotated[bool | None, Column()] = None
    """flag | whether nodes, processes or CPU threads (`threads`) of this run shared cores, or had fewer cores than the scheduler
    granted"""
    busy: Annotated[Texts | None, Column()] = None
    """list of text | what else a machine did while it measured, beyond the limits of the mark `busy`; also among the warnings"""
    nodes: tuple[Node, ...]
    """list | in rank order, the head first"""
    world_size: Annotated[FromOne, Column()]
    """number | nodes x gpus_per_node"""
    device: Annotated[Literal["cpu", "cuda"], Column()]
    """`cuda`, `cpu` | the device that was used"""
    threads_per_rank: Annotated[FromOne, Column()]
    """number | CPU threads of each process"""
    steps_source: Annotated[Literal["program", "log", "none"] | None, Column()] = None
    """word | who reported the steps. `program`: it wrote events. `log`: they were read from its output. `none`: nobody. null in
    records of earlier versions"""
    preflight: Preflight | None = None
    """object or null | below; null if all nodes have one address, as on this machine"""
    performance: Performance | None = None
    """object or null | below"""
    training: Training | None = None
    """object or null | below"""
    window_seen: WindowSeen | None = None
    """object or null | the measured window by Slipway's clock, of the rank with the widest bounds: `rank`, `window_s` (as it
    reports), `least_s` and `most_s` (least and most length by the clock of its node program, or null), `together_s` (from the first
    begin to the last end of all ranks' windows, or null). null without a window, unless `status` is `ok`, and in records of earlier
    versions"""
    resumed_from: ResumedFrom | None = None
    """object or null | the attempt whose checkpoint this one resumed from; null: from the start"""
    checkpoint: Checkpoint | None = None
    """object or null | the checkpoint among the files, which the next attempt resumes from"""
    dataset: Dataset | None = None
    """object or null | `name`, `digest` (64 hex), `samples` (null for a tree of files), `bytes`; null if the cell has none"""
    model_macs: Annotated[Whole | None, Column()] = None
    """number or null | multiply-adds forward of one image or token of the network, with `buckets` the mean over the tokens of the
    window; null for networks that are not Slipway's, or if the lengths were not reported"""
    model_first_macs: Annotated[Whole | None, Column()] = None
    """number or null | the part of `model_macs` in the layers that read the images. Their input gradient is computed only with
    `input_gradient`; then it is 0, as for networks that read tokens"""
    provenance: Provenance
    """object | below"""
    warnings: Annotated[Texts | None, Column()] = None
    """list of text | at most 20: findings of the preflight; a window, steps, ranks or versions that do not fit each other; times
    longer than the run; GPUs beyond the grant; an evaluation of another split or of a part; lines that are no events or report a step
    again"""
    files: tuple[File, ...] | None = None
    """list of `path`, `bytes`, `blake3` | every pushed file but this record"""
    seal: Annotated[Digest | None, Column()] = None
    """64 hex digits | SHA-256 of all other lines of this file: [seal](#seal). Records of versions before 2026-11-22 have none"""


class NewRecord(NamedTuple):
    """A record as it is written: what readers know of it, and all of its provenance, where a program may have keys of its own."""

    record: RunRecord
    provenance: OwnKeys

    def to_json(self) -> OwnKeys:
        """Return the record as an object of JSON, without a seal."""
        found = msgspec.to_builtins(self.record)
        del found["seal"]
        return {**found, "cell": self.record.cell.to_json(), "provenance": self.provenance}


def plain(kind: Any) -> Any:
    """Return the type without `Annotated` and without None."""
    if get_origin(kind) is Annotated:
        return plain(get_args(kind)[0])
    if get_origin(kind) in (types.UnionType, Union):
        left = [one for one in get_args(kind) if one is not type(None)]
        return plain(left[0]) if len(left) == 1 else kind
    return kind
