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
from workflow.study.keys import ABSENT, Count, Flag, Name, NotifyKeys, NotNegative, Part, Seconds, Several, TextLine, wrong
from workflow.study.programs import Argument, ArgumentName, Arguments, Program

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

    name: Literal["sgd", "adamw"] = Field(default="sgd", description="the update rule")
    learning_rate: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = Field(default=0.01, description="step size")
    momentum: Annotated[float, Strict(), Field(ge=0, lt=1)] = Field(default=0.9, description="v = momentum v + gradient, w -= rate v")
    weight_decay: Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="sgd: added to the gradient, times the weight; adamw: taken from the weight, times rate and weight"
    )
    beta1: Annotated[float, Strict(), Field(ge=0, lt=1)] = Field(default=ABSENT, description="adamw: of the mean of the gradient (0.9)")
    beta2: Annotated[float, Strict(), Field(ge=0, lt=1)] = Field(default=ABSENT, description="adamw: of that of its square (0.999)")
    epsilon: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = Field(
        default=ABSENT, description="adamw: added to the root of that (1e-8)"
    )
    clip_norm: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] = Field(
        default=ABSENT, description="gradients of a larger norm, over all parameters, are scaled down to it; default: they are not"
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
        default=50, description="steps in the measured window; tables mark one shorter than 100 steps, or shorter than 30 s"
    )
    total: Count = Field(default=ABSENT, description="steps in all, at least warmup + measured, which is the default")


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

    framework: Name = Field(default="pytorch", description="a folder of containers/frameworks; or program")
    program: Name = Field(default=ABSENT, description="a name under programs, instead of a framework and a model of Slipway's")
    args: Arguments = Field(default=ABSENT, description="arguments of the program, a value each; args.NAME: VALUE is the same")
    mode: Mode = Field(default="train", description="train, or infer: forward only")
    model: Name = Field(default=ABSENT, description="a network of containers/models; of a program any name, its own by default")
    dataset: Name = Field(default=ABSENT, description="a name under datasets; of a program may be left out: none")
    batch_size: Count = Field(default=ABSENT, description="samples per GPU (per process on the CPU) and step; or global_batch_size")
    global_batch_size: Count = Field(default=ABSENT, description="samples per step in all; must divide by nodes x gpus_per_node")
    nodes: Nodes = Field(default=1, description="machines")
    gpus_per_node: GpusPerNode = Field(default=1, description="GPUs of each node; on the CPU: processes per node")
    precision: Precision = Field(default="fp32", description="arithmetic of the forward and backward pass")
    layout: Layout = Field(default="nchw", description="memory order of activations")
    comm_hook: CommHook = Field(default="none", description="compression of the gradients between processes; noop: they are not exchanged")
    bucket_cap_mb: Annotated[int, Strict(), Field(ge=1, le=100_000)] = Field(
        default=ABSENT, description="MB of gradients that are exchanged at once; PyTorch's own is 25, and 1 for the first"
    )
    strategy: Strategy = Field(default="ddp", description="how PyTorch trains in several processes: whole copies, or parameters in parts")
    backend: Backend = Field(default="auto", description="what keras computes with; auto: tensorflow")
    augmentation: Augmentation = Field(
        default="none", description="how images are changed by chance before they are trained on: mirrored, moved by up to an eighth"
    )
    crop_size: Count = Field(
        default=ABSENT,
        description="side of the square that is read of each image: anywhere in it where augmentation has crop, else in the middle",
    )
    dropout: Flag = Field(default=True, description="false: the network without its dropout, whose numbers each framework draws itself")
    reader: Reader = Field(
        default="slipway",
        description="who reads what is trained on: native, the framework in its own order; memory: the first batch, again and again",
    )
    conv_algorithm: ConvAlgorithm = Field(
        default="auto", description="how cuDNN's algorithms for convolutions are chosen; auto: as the framework does by itself"
    )
    input_gradient: Flag = Field(default=False, description="true: the backward pass also computes the gradient of the images")
    device: Device = Field(default="site", description="cuda, cpu, or what the site file says")
    threads: Threads = Field(default="auto", description="CPU threads per process; auto = cores of the node / processes")
    seed: Seed = Field(default=0, description="of weights and sample order")
    optimizer: Optimizer = Field(default=Optimizer(), description="update rule and its constants")
    steps: Steps = Field(default=Steps(), description="length of a run; or epochs")
    epochs: Count = Field(default=ABSENT, description="passes over the training split, instead of steps")
    evaluate_every: Count = Field(
        default=ABSENT, description="epochs from one evaluation to the next, whose time is in no rate; default: only at the end"
    )
    parameters: TextLine = Field(
        default=SEED, description="what a run starts from: seed, a file of parameters (.safetensors), or a run, as RUN or STUDY/RUN"
    )
    save_parameters: Flag = Field(default=True, description="push the trained parameters with the result")

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, values: Any) -> Any:
        return _with_args(values)


class Base(CellKeys):
    """The values of all cells where axes, zip and include say nothing else."""

    repeats: Annotated[int, Strict(), Field(ge=1, le=1000)] = Field(default=3, description="runs per cell; 3 give a confidence interval")


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

    walltime: Seconds = Field(default=RunLimits.walltime_s, description="of one run over all its attempts, such as 30m or 1h30m")
    gpu_hours: Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] = Field(
        default=100.0, description="walltime x GPUs x missing runs: a bound, no estimate; a study above it is refused before submission"
    )
    init: Seconds = Field(
        default=RunLimits.init_s, description="how long a rank may be silent in the phases init, warmup, eval and checkpoint"
    )


class StudyFile(Part):
    """A study of Slipway: what to run. Where and how it runs is in the site file."""

    study: Name = Field(description="name of the study, and of its directory of results")
    datasets: dict[Name, DatasetSpec] = Field(default={}, description="name -> where the samples come from; programs may do without")
    programs: dict[Name, Program] = Field(default={}, description="name -> a training program of your own")
    base: Base = Field(default=Base(), description="values of all cells")
    axes: Axes = Field(default=Axes(), description="keys with several values; cells are all combinations")
    zip: tuple[CellKeys, ...] = Field(default=(), description="rows of keys that vary together, crossed with the axes")
    include: tuple[CellKeys, ...] = Field(default=(), description="extra cells: base plus these keys, nothing from axes or zip")
    exclude: tuple[TextLine, ...] = Field(
        default=(), description="expressions such as \"model == 'resnet18' and batch_size > 32\"; cells that match are left out"
    )
    baseline: CellKeys = Field(
        default=ABSENT, description="speed-up is relative to the cells with these values; default: the fewest nodes and GPUs"
    )
    limits: LimitKeys = Field(default=LimitKeys(), description="walltime of a run, GPU hours of the study")
    profile: Flag = Field(
        default=False, description="true: per cell one short run more, which tells where a step's time goes, and is in no rate"
    )
    target_accuracy: Annotated[float, Strict(), Field(gt=0, le=1)] = Field(
        default=ABSENT, description="from 0 to 1: the tables say when each cell reached it; default: the best that all runs reached"
    )
    notify: NotifyKeys = Field(default=ABSENT, description="who is told of its end; instead of the site's")


def defaults() -> dict[str, Any]:
    """Return every cell key that has a default, as plain values."""
    plain = CellKeys().model_dump()
    plain["steps"].pop("total")
    plain["optimizer"] = {key: value for key, value in plain["optimizer"].items() if value is not None}
    return {key: value for key, value in plain.items() if value is not None}
