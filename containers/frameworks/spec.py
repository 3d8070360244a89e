"""Read `framework.yaml` as a checked value. No pydantic: the supervisor reads it, and its start-up time counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml

from base import jsonfile, sanitize
from base.errors import ConfigError
from base.typed import Check, Closed, Name, read_as
from containers import rank_variables

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(content: bytes, where: Path) -> Any:
    """Parse the document in `content`. Raises ConfigError, which begins with `where`, for what is none."""
    try:
        return yaml.load(content.decode("utf-8-sig"), Loader=_LOADER)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as reason:  # ValueError: 2026-99-99 is read as a date
        raise ConfigError(f"{where} is not valid YAML: {sanitize.printable(str(reason))}") from reason


# What is known of a framework beside how it is started: `facts` of framework.yaml, and other-frameworks.yaml. Table `framework-facts`
# shows it.


OTHERS: Final = Path(__file__).with_name("other-frameworks.yaml")
Word = Annotated[str, Check("text that can be printed", lambda value: isinstance(value, str) and value.isprintable())]
Text = Annotated[Word, Check("text", bool)]
Words = tuple[Word, ...]
When = Annotated[
    str, Check("a year, or year and month as 2026-10, in quotes", lambda value: re.fullmatch(r"\d{4}(-\d\d)?", value) is not None)
]
Status = Literal["maintained", "dormant", "ended", "archived"]
"""Releases come; none comes any more; its makers said that it is over; its repository can only be read."""


@dataclass(frozen=True, kw_only=True)
class Capabilities(Closed):
    """The capabilities of a framework."""

    interfaces: Words = ()
    """languages"""
    data_parallel: Text | None = None
    """by what it trains data-parallel"""
    model_parallel: Text | None = None
    """by what it trains model-parallel"""
    devices: Words = ()
    """devices"""
    lmdb: bool | None = None
    """whether it reads LMDB by itself"""


@dataclass(frozen=True, kw_only=True)
class Verified(Capabilities):
    """The features of a framework that the test `by` ran."""

    by: Text
    """the test that ran it"""


@dataclass(frozen=True, kw_only=True)
class Facts(Closed):
    """The facts about a framework."""

    status: Status
    """`maintained`; `dormant`: no release comes any more; `ended`: its makers said so; `archived`: its repository can only be read"""
    release: Text
    """the last release"""
    released: When | None = None
    """month or year of that, in quotes"""
    licence: Text
    """by its SPDX name"""
    claimed: Capabilities
    """what `sources` say of it"""
    sources: Words
    """who says what is claimed, status and release"""
    verified: Verified | None = None
    """the same keys as `claimed`, but only what the test `by` ran. Without it the framework was never run"""


def load_other_facts() -> Mapping[str, Facts]:
    """Return the facts of frameworks that comparisons name and that Slipway does not run, by name. Raises ConfigError."""
    found = parse_yaml(jsonfile.read_content(OTHERS, ConfigError), OTHERS)
    return {str(name): read_as(Facts, facts, OTHERS, ConfigError) for name, facts in found.items()}


def describe_capabilities(capabilities: Capabilities | None) -> Mapping[str, str]:
    """Return the fields as words, in order; empty where nothing is told."""
    if capabilities is None:
        capabilities = Capabilities()
    lmdb = {None: "", True: "yes", False: "no"}[capabilities.lmdb]
    return {
        "interfaces": ", ".join(capabilities.interfaces),
        "data_parallel": capabilities.data_parallel or "",
        "model_parallel": capabilities.model_parallel or "",
        "devices": ", ".join(capabilities.devices),
        "lmdb": lmdb,
    }


Mode = Literal["train", "infer"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Layout = Literal["nchw", "nhwc"]
CommHook = Literal["none", "fp16", "bf16", "powersgd", "onebit", "noop"]
Strategy = Literal["ddp", "fsdp2", "horovod"]
Backend = Literal["auto", "tensorflow", "jax", "torch"]
Augmentation = Literal["none", "flip", "crop", "crop-flip"]
Reader = Literal["slipway", "native", "memory"]
ConvAlgorithm = Literal["auto", "heuristic", "measured", "deterministic"]
Optimizer = Literal["sgd", "adamw"]
PLACEHOLDERS: Final = ("{python}", "{folder}", *(f"{{{name}}}" for name in rank_variables.NETWORK_PLACES))
PORT_PLACEHOLDER: Final = re.compile(r"{port\.[a-z0-9_]+}")
PYTHON_VERSION: Final = Check('two numbers as text, such as "3.8"', lambda value: bool(re.fullmatch(r"3\.[0-9]{1,2}", value)))
Environment = Annotated[Mapping[str, Word | int], Check("names with values", lambda value: all(isinstance(name, str) for name in value))]


@dataclass(frozen=True, kw_only=True)
class Sidecar(Closed):
    """A process that lives around the ranks, on the head node or on each node."""

    name: Name
    """name of the sidecar"""
    where: Literal["head", "each"]
    """`head` or `each` node"""
    command: Words
    """the command, with the placeholders of the program's"""
    env: Environment = field(default_factory=dict)
    """environment variables"""
    ends: rank_variables.SidecarEnds = "stopped"
    """`stopped` after the ranks, or `with-ranks`: by itself when they end"""


@dataclass(frozen=True, kw_only=True)
class DeviceOnly(Closed):
    """Words that a framework supports on one kind of device only."""

    precision: tuple[Precision, ...] = ()
    layout: tuple[Layout, ...] = ()
    comm_hook: tuple[CommHook, ...] = ()
    backends: tuple[Backend, ...] = ()
    strategies: tuple[Strategy, ...] = ()
    conv_algorithm: tuple[ConvAlgorithm, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Supports(Closed):
    """What cells may ask of a framework."""

    modes: tuple[Mode, ...]
    """of `mode`"""
    models: Words
    """of `model`"""
    precision: tuple[Precision, ...]
    """of `precision`"""
    layout: tuple[Layout, ...]
    """of `layout`"""
    comm_hook: tuple[CommHook, ...]
    """of `comm_hook`"""
    devices: tuple[Literal["cpu", "cuda"], ...]
    """of `device`"""
    strategies: tuple[Strategy, ...] = ("ddp",)
    """of `strategy`"""
    backends: tuple[Backend, ...] = ("auto",)
    """of `backend`"""
    cuda_only: DeviceOnly = DeviceOnly()
    """words of `precision`, `layout`, `comm_hook`, `backends`, `strategies`, `conv_algorithm` that it supports on GPUs only"""
    cpu_only: DeviceOnly = DeviceOnly()
    """the same for CPUs"""
    augmentation: tuple[Augmentation, ...] = ("none",)
    """of `augmentation`"""
    readers: tuple[Reader, ...] = ("slipway",)
    """of `reader`"""
    conv_algorithm: tuple[ConvAlgorithm, ...] = ("auto",)
    """of `conv_algorithm`"""
    optimizers: tuple[Optimizer, ...] = ("sgd",)
    """of `optimizer.name`"""
    clipping: bool = False
    """whether it knows `clip_norm`"""
    profile: bool = False
    """whether its program traces the layers of a step, in a profile run"""
    parameters: bool = False
    """whether its program starts from a file of parameters, if a cell names one"""
    bucket_size: bool = False
    """whether it knows `bucket_cap_mb`"""
    input_gradient: bool = False
    """whether it computes the gradient of the images, if a cell asks for it"""
    evaluate_every: bool = False
    """whether it evaluates between epochs, if a cell asks for it"""


@dataclass(frozen=True, kw_only=True)
class Missing(Closed):
    """Words that only other frameworks support, with the reason, which is shown to users who ask for one of them."""

    words: Words
    """models, modes, precisions, augmentations or devices that only other frameworks support"""
    why: Text
    """the reason, which the refusal and the table `framework-facts` show"""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec(Closed):
    """How the framework's own environment is made, which the bare engine uses."""

    pins: Word
    """a file in the folder with everything that is installed; an environment of other pins is refused as old"""
    installer: Word | None = None
    """path of a program, relative to the folder, that makes the environment. Slipway's Python runs it with the folder, the directory
    to fill (`bin/python` is then the interpreter), and `--python`, `--debian` of `make framework`. Default: pip installs the pins
    with Slipway's Python"""


@dataclass(frozen=True, kw_only=True)
class FrameworkSpec(Closed):
    """A framework folder, by its framework.yaml."""

    name: Name
    """name of the folder"""
    folder: Path = field(init=False, default=Path())
    image: Text
    """container image, for every engine but `bare`; `images` of the site file replaces it"""
    python: Text
    """interpreter inside the image. `engine: bare` uses that of the framework's own environment, or Slipway's own"""
    launcher: rank_variables.Launcher
    """`single`: one process on the head node. `torchrun`: one torchrun per node. `ranks`: one process per rank. `mpirun`: one mpirun
    for all"""
    env: tuple[rank_variables.Rendering, ...]
    """renderings of the allocation as variables of each rank: `tf_config`, `paddle`, `dmlc`, `horovod`; launchers `ranks` and
    `single`. In a program of a study this is `env_from`"""
    sidecars: tuple[Sidecar, ...]
    """processes around the ranks, each with the keys below"""
    command: Words
    """one process; `{python}`, `{folder}`, `{head}`, `{address}` and `{port.NAME}` are filled in"""
    supports: Supports
    """what cells may ask for; anything else is refused when the study is read"""
    missing: tuple[Missing, ...] = ()
    """what others support and this one does not, with the reason; a test holds that nothing is missing without a reason"""
    packages: Words
    """the package of the framework with its exact version, as in the pins and the tag of `image`; then the words that its program
    imports. For tests only"""
    library: Words = ()
    """folders relative to this one, with names that begin with `slipway_`, which the program finds on its path"""
    environment: EnvironmentSpec | None = None
    """the framework's own environment, for `engine: bare`"""
    python_version: Annotated[str, PYTHON_VERSION] | None = None
    """version of Python that the program needs, such as `"3.8"`, if Slipway's is too new"""
    checkpoint: bool = False
    """whether the program writes a checkpoint when asked, and resumes from one"""
    own_order: bool = False
    """whether it chooses the order of the samples by itself. Then only the loss of step 0 is compared"""
    facts: Facts | None = None
    """facts for the table `framework-facts`"""

    def __post_init__(self) -> None:
        for key, command in (("command", self.command), *((f"sidecars: {one.name}: command", one.command) for one in self.sidecars)):
            found = [place for word in command for place in re.findall(r"{[^}]*}", word)]
            if not command or not all(place in PLACEHOLDERS or PORT_PLACEHOLDER.fullmatch(place) for place in found):
                valid = ", ".join((*PLACEHOLDERS, "{port.NAME}"))
                raise ValueError(f"{key}: expected words, with no placeholder but {valid}, found {command!r}")
        names = [one.name for one in self.sidecars]
        if len(set(names)) < len(names):
            raise ValueError(f"sidecars: expected each name once, found {names!r}")
        supported = {word for one in fields(Supports) if isinstance(words := getattr(self.supports, one.name), tuple) for word in words}
        if both := supported & self.why.keys():
            raise ValueError(f"missing: found {sorted(both)!r}, which supports has; valid: one of the two")
        if wrong := [word for word in self.library if not Path(word).name.startswith("slipway_")]:
            raise ValueError(f"library: expected folders whose names begin with slipway_, found {wrong!r}")

    @property
    def library_folders(self) -> tuple[Path, ...]:
        return tuple((self.folder / word).resolve() for word in self.library)

    @property
    def why(self) -> Mapping[str, str]:
        return {word: one.why for one in self.missing for word in one.words}


def read_framework(path: Path) -> FrameworkSpec:
    """Read the specification in the file. Raises ConfigError naming file and key."""
    return parse_framework(jsonfile.read_content(path, ConfigError), path)


def parse_framework(content: bytes, path: Path) -> FrameworkSpec:
    """Read the specification in `content`, which stands in `path`. Raises ConfigError naming file and key."""
    spec = read_as(FrameworkSpec, parse_yaml(content, path), path, ConfigError)
    if spec.name != path.parent.name:
        raise ConfigError(f"{path}: name: must be the name of its folder, {path.parent.name!r}, found {spec.name!r}")
    object.__setattr__(spec, "folder", path.parent)
    return spec
