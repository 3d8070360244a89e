"""Define the model of the study file: every key, its type and its default.

Checks of several keys at once are in matrix.py (before cells are made) and cell_maker.py (per cell). A default changes nothing in a
cell's identity (cell.py hashes what differs from the defaults), so a new key needs a default that means what was done before the key
existed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, get_type_hints

from pydantic import BeforeValidator, Field, Strict, WithJsonSchema, create_model, model_validator

from containers.frameworks.spec import Augmentation, Backend, CommHook, ConvAlgorithm, Layout, Mode, Precision, Reader, Strategy
from data_prep.spec import DatasetSpec
from workflow.study.cell import ARGS, SEED, RunLimits
from workflow.study.programs import Argument, ArgumentName, Arguments, Program
from workflow.study.value_types import ABSENT, Count, Flag, Name, NotifyKeys, NotNegative, Part, Seconds, Several, TextLine, wrong

Nodes = Annotated[int, Strict(), Field(ge=1, le=100_000)]
GpusPerNode = Annotated[int, Strict(), Field(ge=1, le=1024)]
Device = Literal["site", "cuda", "cpu"]


def _threads(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 4096):
        return value
    raise wrong(value, "auto (the node's cores / its processes), or a whole number from 1")


Threads = Annotated[
    int | str,
    BeforeValidator(_threads),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": 4096}]}),
]
Seed = Annotated[int, Strict(), Field(ge=0, le=2**63 - 1)]


OF_ADAMW: Final = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
"""Constants of AdamW alone, with their defaults."""
OF_SGD: Final = ("momentum",)
"""The constants of SGD alone."""


class Optimizer(Part):
    """The update rule and its constants; keys left out keep the value of `base`, then the default."""

    name: Literal["sgd", "adamw"] = Field(
        default="sgd",
        description="the update rule. `adamw` is that of Loshchilov and Hutter, as in PyTorch. Frameworks `pytorch` and `jax` have it, "
        "with the same numbers",
    )
    learning_rate: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = Field(default=0.01, description="step size")
    momentum: Annotated[float, Strict(), Field(ge=0, lt=1)] = Field(
        default=0.9, description="of `sgd`: v = momentum v + gradient; weight -= learning_rate v"
    )
    weight_decay: Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0,
        description="decay of weights, not of biases and batch normalisation. `sgd` adds it to the gradient; `adamw` takes it from the "
        "weight",
    )
    beta1: Annotated[float, Strict(), Field(ge=0, lt=1)] = Field(
        default=ABSENT, description="of `adamw`: how slowly the mean of the gradient follows. Default: 0.9"
    )
    beta2: Annotated[float, Strict(), Field(ge=0, lt=1)] = Field(
        default=ABSENT, description="of `adamw`: how slowly the mean of the squared gradient follows. Default: 0.999"
    )
    epsilon: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = Field(
        default=ABSENT, description="of `adamw`: added to the root of the mean square. Default: 1e-8"
    )
    clip_norm: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = Field(
        default=ABSENT,
        description="averaged gradients whose norm over all parameters is larger are scaled down to it. Frameworks `pytorch` (not with "
        "`strategy: horovod`) and `jax` know it. Default: no clipping",
    )

    @model_validator(mode="after")
    def _of_one_rule(self) -> Self:
        others = OF_SGD if self.name == "adamw" else tuple(OF_ADAMW)
        wrong_ones = [key for key in others if key in self.model_fields_set] if "name" in self.model_fields_set else []
        if wrong_ones:
            raise ValueError(f"{wrong_ones[0]} is not for name: {self.name}; leave it out")
        return self


def of_its_rule(optimizer: Mapping[str, object]) -> dict[str, object]:
    """Return the constants of one update rule with the defaults, without those of the other one, which other cells may have."""
    if optimizer["name"] == "adamw":
        return {**OF_ADAMW, **{key: value for key, value in optimizer.items() if key not in OF_SGD}}
    return {key: value for key, value in optimizer.items() if key not in OF_ADAMW}


class Steps(Part):
    """How many steps a run makes: `warmup` are discarded, `measured` are timed, `total` may go on after them."""

    warmup: NotNegative = Field(default=10, description="steps before the measured window; at least 10 are advised")
    measured: Count = Field(
        default=50, description="steps in the measured window. Tables mark a window that is shorter than 100 steps or 30 s"
    )
    total: Count = Field(default=ABSENT, description="steps in all, at least `warmup` + `measured`, which is the default")


def _with_args(values: Any) -> Any:
    """Accept `args.width: 512` as another way to write `args: {width: 512}`."""
    if not isinstance(values, Mapping) or not isinstance(values.get("args", {}), Mapping):
        return values
    short = {key: value for key, value in values.items() if isinstance(key, str) and key.startswith(ARGS)}
    names = {key.removeprefix(ARGS): value for key, value in short.items()}
    twice = sorted(names.keys() & values.get("args", {}).keys())
    if twice:
        raise ValueError(f"args.{twice[0]} stands here twice, and within args; valid: once")
    rest = {key: value for key, value in values.items() if key not in short}
    return {**rest, "args": {**values.get("args", {}), **names}} if names else rest


class CellKeys(Part):
    """The keys that make a cell. `base` gives them one value each; axes, zip and include override it."""

    framework: Name = Field(
        default="pytorch",
        description="the name of a folder in `containers/frameworks/`. `supports` in its `framework.yaml` says what it can do",
    )
    program: Name = Field(default=ABSENT, description="a name under `programs`, instead of `framework`")
    args: Arguments = Field(
        default=ABSENT,
        description="arguments of the program. `args.width: 512` means the same as `args: {width: 512}`, and an axis is written so",
    )
    mode: Mode = Field(default="train", description="`infer`: forward pass only, and ranks do not wait for each other")
    model: Name = Field(
        default=ABSENT,
        description="required, except with `program`: then any name, and the name of the program by default. Otherwise one of the "
        "[networks](#networks)",
    )
    dataset: Name = Field(
        default=ABSENT, description="a name under `datasets`, required except with `program`. `none`: nothing is built or staged"
    )
    batch_size: Count = Field(
        default=ABSENT,
        description="samples per step and GPU; on the CPU samples per step and process. A cell needs `batch_size` or `global_batch_size`",
    )
    global_batch_size: Count = Field(default=ABSENT, description="samples per step in all. It must divide by `nodes` x `gpus_per_node`")
    nodes: Nodes = Field(default=1, description="number of machines")
    gpus_per_node: GpusPerNode = Field(default=1, description="GPUs of each node; on the CPU processes of each node")
    precision: Precision = Field(
        default="fp32", description="arithmetic of the forward and backward pass. Weights stay `fp32`. `tf32` and `fp16` need GPUs"
    )
    layout: Layout = Field(default="nchw", description="memory order of activations")
    comm_hook: CommHook = Field(
        default="none",
        description="compression of the gradients between processes. `noop`: gradients are not exchanged, which is for diagnosis only",
    )
    bucket_cap_mb: Annotated[int, Strict(), Field(ge=1, le=100_000)] = Field(
        default=ABSENT,
        description="MB of gradients that are exchanged at once; `pytorch` with strategy `ddp` only. Default: PyTorch's, which is 1 for "
        "the first bucket and 25 for the others",
    )
    strategy: Strategy = Field(
        default="ddp",
        description="how `pytorch` trains in several processes. `ddp`: each process has the whole network. `fsdp2`: each has a part of "
        "every parameter. `horovod`: as `ddp`, with Horovod's exchange. See [strategies](#strategies)",
    )
    backend: Backend = Field(
        default="auto",
        description="what `keras` computes with; `auto` is `tensorflow`. The losses are the same. On GPUs `jax` and `torch` only. "
        "`torch` without containers needs `make framework NAME=keras-torch`",
    )
    augmentation: Augmentation = Field(
        default="none",
        description="how training images are changed at random. `flip` mirrors one image in two. `crop` adds a border of zeros, an "
        "eighth of the side wide, and cuts an image of the old size out of it. See "
        "[augmentation](#augmentation-and-dropout)",
    )
    crop_size: Count = Field(
        default=ABSENT,
        description="side of the square that the network sees of each image: a random one in training where `augmentation` has `crop`, "
        "otherwise the one in the middle. Default: whole images",
    )
    dropout: Flag = Field(
        default=True,
        description="`false`: the network is trained without its dropout layers. Each framework draws its own random numbers for them, "
        "so losses can be compared only without",
    )
    reader: Reader = Field(
        default="slipway",
        description="who reads training samples. `slipway`: the same samples in the same order for all frameworks. `native`: `caffe` "
        "and `caffe2` read by themselves, see [native readers](#native-readers). `memory`: each rank trains on its first "
        "batch again and again, which measures what input costs; frameworks `pytorch`, `jax`, `tensorflow` and `keras`",
    )
    conv_algorithm: ConvAlgorithm = Field(
        default="auto",
        description="how cuDNN's algorithms of convolutions are chosen; other words than `auto` need `pytorch` on GPUs. `auto`: by the "
        "framework, for `pytorch` as `heuristic`. `heuristic`: by shape. `measured`: the fastest of several that the first "
        "steps try, so give `steps.warmup` room. `deterministic`: one that gives the same bits each time",
    )
    input_gradient: Flag = Field(
        default=False,
        description="`true`: the backward pass also computes the gradient of the images, which training does not need, but some "
        "benchmarks compute. Losses stay the same; a step gets longer (AlexNet on an H100: 5.5 %). `pytorch` and images "
        "only",
    )
    device: Device = Field(default="site", description="`site`: as the site file says")
    threads: Threads = Field(
        default="auto",
        description="CPU threads per process; `auto` is the cores of the node / its processes. On a GPU `pytorch` takes fewer, so that "
        "its loader processes have cores, too",
    )
    seed: Seed = Field(default=0, description="seed of weights and sample order")
    optimizer: Optimizer = Field(
        default=Optimizer(),
        description="the update rule and its constants: [optimizer](#optimizer). Keys that are left out keep the value of `base`, then "
        "the default",
    )
    steps: Steps = Field(default=Steps(), description="length of a run: [steps](#steps). A cell has `steps` or `epochs`")
    epochs: Count = Field(
        default=ABSENT,
        description="passes over the training split. Steps = epochs x floor(samples / global batch); with `buckets` the sum over them. "
        "The warm-up is the first 10 steps, at most a fifth",
    )
    evaluate_every: Count = Field(
        default=ABSENT,
        description="epochs from one evaluation to the next; its time is in no rate. Default: one evaluation at the end. See "
        "[evaluation](#evaluation-between-epochs)",
    )
    parameters: TextLine = Field(
        default=SEED,
        description="what a run starts from: `seed`, a path that ends with `.safetensors`, or a run as RUN or STUDY/RUN. See [given "
        "parameters](#given-parameters)",
    )
    save_parameters: Flag = Field(default=True, description="whether the trained parameters are pushed with the result")

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, values: Any) -> Any:
        return _with_args(values)


class Base(CellKeys):
    """The values of all cells where axes, zip and include say nothing else."""

    repeats: Annotated[int, Strict(), Field(ge=1, le=1000)] = Field(
        default=3, description="runs of each cell, the same number for all cells. Fewer than 3 give no confidence interval"
    )


if TYPE_CHECKING:
    Axes = Part
else:
    _KINDS: Final = get_type_hints(CellKeys, include_extras=True)
    Axes = create_model(
        "Axes",
        __base__=Part,
        __doc__="Keys and their values; the cells are all combinations.",
        __validators__={"gathered": model_validator(mode="before")(_with_args)},
        **{key: (Several[_KINDS[key]], Field(default=())) for key in CellKeys.model_fields if key != "args"},
        args=(dict[ArgumentName, Several[Argument]], Field(default=ABSENT)),
    )


class LimitKeys(Part):
    """What a run and a study may cost."""

    walltime: Seconds = Field(
        default=RunLimits.walltime_s,
        description="time of one run over all its attempts, dataset staging included. It may be more than the site's `walltime`, the "
        "longest job, if the framework can resume from a checkpoint",
    )
    gpu_hours: Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] = Field(
        default=100.0,
        description="the most that the study may cost: walltime x GPUs x missing runs. Nothing starts above it. Runs on the CPU count "
        "nothing. `slipway plan` prints this bound, and beside it an estimate that no limit is compared with",
    )
    init: Seconds = Field(
        default=RunLimits.init_s,
        description="how long a rank may be silent in the phases init, warmup, eval and checkpoint. In the phase train the limit is the "
        "larger of 60 s and 20 median steps. A rank that is silent for longer ends the run as `hang`",
    )


class StudyFile(Part):
    """A study of Slipway: what to run. Where and how it runs is in the site file."""

    study: Name = Field(description="name of the study, and of its results directory `<storage>/results/<study>/`")
    datasets: dict[Name, DatasetSpec] = Field(
        default={},
        description="where the samples come from: name -> [keys of a dataset](datasets.md). A dataset that no cell uses is not built. "
        "`none` is no valid name",
    )
    programs: dict[Name, Program] = Field(default={}, description="training programs of your own: name -> [keys of a program](#programs)")
    base: Base = Field(default=Base(), description="values of all cells: [cell keys](#cell-keys), one value each, and `repeats`")
    axes: Axes = Field(default=Axes(), description="cell key -> list of values. The cells are all combinations")
    zip: tuple[CellKeys, ...] = Field(
        default=(), description="rows of cell keys that vary together, crossed with the axes. Every row has the same keys"
    )
    include: tuple[CellKeys, ...] = Field(
        default=(),
        description="extra cells: `base` and the keys of the row, nothing from `axes` or `zip`. If a study has `include` and neither "
        "`axes` nor `zip`, these rows are its only cells",
    )
    exclude: tuple[TextLine, ...] = Field(
        default=(), description="combinations that match one of these [expressions](#exclude) are left out"
    )
    baseline: CellKeys = Field(
        default=ABSENT,
        description="cell keys of the cells that [speed-up](#baseline-and-scaling) is relative to. Default: the fewest `nodes`, and if "
        "`gpus_per_node` differ, the fewest of them",
    )
    limits: LimitKeys = Field(default=LimitKeys(), description="what a run and the study may cost: [limits](#limits)")
    profile: Flag = Field(
        default=False,
        description="`true`: each cell gets one short run more, which measures where the time of a step goes and is in no rate",
    )
    target_accuracy: Annotated[float, Strict(), Field(gt=0, le=1)] = Field(
        default=ABSENT, description="accuracy for the table `time-to-accuracy`. Default: the best accuracy that all runs reached"
    )
    notify: NotifyKeys = Field(
        default=ABSENT, description="whom to notify of the end of the study, instead of the site's: [notify](#notify)"
    )


def defaults() -> dict[str, Any]:
    """Return every cell key that has a default, as plain values."""
    plain = CellKeys().model_dump()
    plain["steps"].pop("total")
    plain["optimizer"] = {key: value for key, value in plain["optimizer"].items() if value is not None}
    return {key: value for key, value in plain.items() if value is not None}
