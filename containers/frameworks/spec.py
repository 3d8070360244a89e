"""`framework.yaml` as a checked value. No pydantic: the supervisor reads it, and its start-up time counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml

from base import jsonfile, sanitize
from base.errors import ConfigError, SlipwayError
from base.typed import Check, Closed, Name, read_as
from containers import renderings, step_lines

# YAML that others wrote, as plain values: within bounds, and without aliases, since a hundred bytes of them can stand for gigabytes.


MAX_DEPTH: Final = 32
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(content: bytes, where: Path | str, error: type[SlipwayError]) -> Any:
    """Parse the document in `content`. Raises `error`, which begins with `where`, for what is none, an alias, or more than MAX_DEPTH
    levels.
    """
    try:
        text = content.decode("utf-8-sig")
        problem = _problem(text)
        if problem is None:
            return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as reason:  # ValueError: 2026-99-99 is read as a date
        raise error(f"{where} is not valid YAML: {sanitize.printable(str(reason))}") from reason
    raise error(f"{where}: {problem}")


def _problem(text: str) -> str | None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            return f"line {_line(event)}: *{event.anchor} stands for another part of the file; write that out"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return f"line {_line(event)}: nested more than {MAX_DEPTH} deep"
    return None


def _line(event: yaml.Event) -> int | str:
    return "?" if event.start_mark is None else event.start_mark.line + 1


# What is known of a framework beside how it is started: `facts` of framework.yaml, and other-frameworks.yaml. Table `framework-facts`
# shows it.


OTHERS: Final = Path(__file__).with_name("other-frameworks.yaml")
MAX_LINE: Final = 200
MAX_LINES: Final = 20


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_LINE and value.isprintable()


Line = Annotated[str, Check(f"text of 1 to {MAX_LINE} characters that can be printed", _is_line)]
Lines = Annotated[tuple[Line, ...], Check(f"at most {MAX_LINES} entries", lambda value: len(value) <= MAX_LINES)]
When = Annotated[
    str, Check("a year, or year and month as 2026-10, in quotes", lambda value: re.fullmatch(r"\d{4}(-\d\d)?", value) is not None)
]
Status = Literal["maintained", "dormant", "ended", "archived"]
"""Releases come; none comes any more; its makers said that it is over; its repository can only be read."""


@dataclass(frozen=True, kw_only=True)
class Able(Closed):
    """What a framework has. `data_parallel`, `model_parallel`: by what; `lmdb`: whether it reads LMDB by itself."""

    interfaces: Lines = ()
    data_parallel: Line | None = None
    model_parallel: Line | None = None
    devices: Lines = ()
    lmdb: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Verified(Able):
    """The features of a framework that the test `by` ran."""

    by: Line


@dataclass(frozen=True, kw_only=True)
class Facts(Closed):
    """The facts about a framework. `claimed`: what `sources` say of it. `verified`: what a test of ours ran; None: it was never run."""

    status: Status
    release: Line
    released: When | None = None
    licence: Line
    claimed: Able
    sources: Lines
    verified: Verified | None = None


def load_other_facts() -> Mapping[str, Facts]:
    """Return the facts of frameworks that comparisons name and that Slipway does not run, by name. Raises ConfigError."""
    found = parse_yaml(jsonfile.read_content(OTHERS, ConfigError), OTHERS, ConfigError)
    return {str(name): read_as(Facts, facts, OTHERS, ConfigError) for name, facts in found.items()}


def in_words(able: Able | None) -> Mapping[str, str]:
    """Return the fields as words, in order; empty where nothing is told."""
    if able is None:
        able = Able()
    lmdb = {None: "", True: "yes", False: "no"}[able.lmdb]
    return {
        "interfaces": ", ".join(able.interfaces),
        "data_parallel": able.data_parallel or "",
        "model_parallel": able.model_parallel or "",
        "devices": ", ".join(able.devices),
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
PLACEHOLDERS: Final = ("{python}", "{folder}", *(f"{{{name}}}" for name in renderings.NETWORK_PLACES))
PORT_PLACEHOLDER: Final = re.compile(r"{port\.[a-z0-9_]+}")
MAX_BYTES: Final = 1 << 20
MAX_TEXT: Final = 2000
MAX_LIST: Final = 1000


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()


Word = Annotated[str, Check(f"at most {MAX_TEXT} characters that can be printed", _is_word)]
Text = Annotated[Word, Check("text", bool)]
PYTHON_VERSION: Final = Check('two numbers as text, such as "3.8"', lambda value: bool(re.fullmatch(r"3\.[0-9]{1,2}", value)))
SHORT: Final = Check(f"at most {MAX_LIST} entries", lambda value: len(value) <= MAX_LIST)
Words = Annotated[tuple[Word, ...], SHORT]
Environment = Annotated[Mapping[str, Word | int], Check("names with values", lambda value: all(map(_is_word, value)))]


@dataclass(frozen=True, kw_only=True)
class Sidecar(Closed):
    """A process that lives around the ranks, on the head node or on each node. `ends`: whether it is stopped after the ranks, or ends by
    itself when they do."""

    name: Name
    where: Literal["head", "each"]
    command: Words
    env: Environment = field(default_factory=dict)
    ends: renderings.SidecarEnds = "stopped"


@dataclass(frozen=True, kw_only=True)
class DeviceOnly(Closed):
    """Words that a framework supports on one kind of device only."""

    precision: Annotated[tuple[Precision, ...], SHORT] = ()
    layout: Annotated[tuple[Layout, ...], SHORT] = ()
    comm_hook: Annotated[tuple[CommHook, ...], SHORT] = ()
    backends: Annotated[tuple[Backend, ...], SHORT] = ()
    strategies: Annotated[tuple[Strategy, ...], SHORT] = ()
    conv_algorithm: Annotated[tuple[ConvAlgorithm, ...], SHORT] = ()


@dataclass(frozen=True, kw_only=True)
class Supports(Closed):
    """What cells may ask of a framework."""

    modes: Annotated[tuple[Mode, ...], SHORT]
    models: Words
    precision: Annotated[tuple[Precision, ...], SHORT]
    layout: Annotated[tuple[Layout, ...], SHORT]
    comm_hook: Annotated[tuple[CommHook, ...], SHORT]
    devices: Annotated[tuple[Literal["cpu", "cuda"], ...], SHORT]
    strategies: Annotated[tuple[Strategy, ...], SHORT] = ("ddp",)
    backends: Annotated[tuple[Backend, ...], SHORT] = ("auto",)
    cuda_only: DeviceOnly = DeviceOnly()
    cpu_only: DeviceOnly = DeviceOnly()
    augmentation: Annotated[tuple[Augmentation, ...], SHORT] = ("none",)
    readers: Annotated[tuple[Reader, ...], SHORT] = ("slipway",)
    conv_algorithm: Annotated[tuple[ConvAlgorithm, ...], SHORT] = ("auto",)
    optimizers: Annotated[tuple[Optimizer, ...], SHORT] = ("sgd",)
    clipping: bool = False
    profile: bool = False
    """Whether its program traces the layers of a step, in a profile run."""
    parameters: bool = False
    """Whether its program starts from a file of parameters, where a cell names one."""
    bucket_size: bool = False
    """Whether its program exchanges gradients in buckets of the size that a cell asks for."""
    input_gradient: bool = False
    """Whether its program computes the gradient of the images, where a cell asks for it."""
    evaluate_every: bool = False
    """Whether its program evaluates between epochs, where a cell asks for it."""


@dataclass(frozen=True, kw_only=True)
class Missing(Closed):
    """Words that only other frameworks support, with the reason, which is shown to users who ask for one of them."""

    words: Words
    why: Text


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec(Closed):
    """How the framework's own environment is made, which the bare engine uses.

    `pins` is a file in the folder with all that is installed. `installer` is a program, beside the folder or in it, that makes the
    environment: Slipway's Python runs it with the folder, the directory, and what `make framework` was told (`--python`, `--debian`). None:
    pip installs the pins with Slipway's Python.
    """

    pins: Word
    installer: Word | None = None


@dataclass(frozen=True, kw_only=True)
class FrameworkSpec(Closed):
    """A framework folder.

    `env`: renderings of the allocation as environment variables; `events`: who writes them (step_lines.py); `python`: the interpreter
    inside the image (the bare engine has its own); `packages`: what that interpreter must be able to import, as requirements;
    `environment`: where it has one of its own, which needs `python_version` if Slipway's Python is too new; `library`: folders beside this
    one that its program finds on its path; `command`: one process, with {python} and {folder} to fill in; `checkpoint`: whether the program
    writes a checkpoint when asked, and resumes from one; `missing`: why `supports` has not what others have; `containers_only`: why it
    cannot run without a container; `own_order`: whether it chooses the order of the samples by itself.
    """

    name: Name
    folder: Path = field(init=False, default=Path())
    image: Text
    python: Text
    launcher: renderings.Launcher
    env: Annotated[tuple[renderings.Rendering, ...], SHORT]
    sidecars: Annotated[tuple[Sidecar, ...], SHORT]
    command: Words
    events: step_lines.EventsWord | step_lines.LogEvents
    supports: Supports
    missing: Annotated[tuple[Missing, ...], SHORT] = ()
    packages: Words
    library: Words = ()
    environment: EnvironmentSpec | None = None
    python_version: Annotated[str, PYTHON_VERSION] | None = None
    checkpoint: bool = False
    containers_only: Text | None = None
    own_order: bool = False
    facts: Facts | None = None

    def __post_init__(self) -> None:
        for key, command in (("command", self.command), *((f"sidecars: {one.name}: command", one.command) for one in self.sidecars)):
            if not command or not all(map(_is_placeholder, (found for word in command for found in re.findall(r"{[^}]*}", word)))):
                valid = ", ".join((*PLACEHOLDERS, "{port.NAME}"))
                raise ValueError(f"{key}: expected words, with no placeholder but {valid}, found {command!r}")
        names = [one.name for one in self.sidecars]
        if len(set(names)) < len(names):
            raise ValueError(f"sidecars: expected each name once, found {names!r}")
        try:
            kind, _ = step_lines.events_of(self.events)
        except ValueError as error:
            raise ValueError(f"events: {error}") from error
        supported = {word for one in fields(Supports) if isinstance(words := getattr(self.supports, one.name), tuple) for word in words}
        if both := supported & self.why.keys():
            raise ValueError(f"missing: found {sorted(both)!r}, which supports has; valid: one of the two")
        if wrong := [word for word in self.library if not Path(word).name.startswith("slipway_")]:
            raise ValueError(f"library: expected folders whose names begin with slipway_, found {wrong!r}")
        if kind != "program" and self.checkpoint:
            raise ValueError("checkpoint: found true, and a program that writes no events cannot tell of one; valid: false")

    @property
    def library_folders(self) -> tuple[Path, ...]:
        return tuple((self.folder / word).resolve() for word in self.library)

    @property
    def why(self) -> Mapping[str, str]:
        return {word: one.why for one in self.missing for word in one.words}


def _is_placeholder(found: str) -> bool:
    return found in PLACEHOLDERS or PORT_PLACEHOLDER.fullmatch(found) is not None


def read_framework(path: Path) -> FrameworkSpec:
    """Read the specification in the file. Raises ConfigError naming file and key."""
    return parse_framework(jsonfile.read_content(path, ConfigError, MAX_BYTES), path)


def parse_framework(content: bytes, path: Path) -> FrameworkSpec:
    """Read the specification in `content`, which stands in `path`. Raises ConfigError naming file and key."""
    spec = read_as(FrameworkSpec, parse_yaml(content, path, ConfigError), path, ConfigError)
    if spec.name != path.parent.name:
        raise ConfigError(f"{path}: name: must be the name of its folder, {path.parent.name!r}, found {spec.name!r}")
    object.__setattr__(spec, "folder", path.parent)
    return spec
