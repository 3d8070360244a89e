"""Read the `programs` of a study file: the user's own training programs, and the arguments (`args`) that cells give them.

What is compared when a result is looked for (`identity`) is how a program is started, not the bytes of its folder: who changes those in
a way that makes other numbers raises `version`. The record has the digest of the folder, and tables mark results of different ones.
"""

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, Strict, WithJsonSchema
from pydantic_core import PydanticCustomError

from base.errors import SlipwayError
from base.humanize import absolute_path, choices, some
from containers import frameworks, program_folder, rank_variables
from containers.frameworks.spec import Augmentation, Backend, CommHook, ConvAlgorithm, Layout, Mode, Precision, Reader, Strategy
from containers.step_lines import MAX_EVERY, MAX_EXPRESSION, every_fault, expression_fault, reports
from workflow.study.cell import PROGRAM_PLACES
from workflow.study.explain import Fault, fault_error
from workflow.study.loader import Document, KeyPath, kind_of, read_document
from workflow.study.value_types import ABSENT, Count, Flag, Name, Part, Several, TextLine, text_that, wrong

ARGUMENT: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
ARGUMENT_RULE: Final = "lower-case letters, digits and '_', first a letter, at most 40"
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
OURS: Final = re.compile(
    r"SLIPWAY_.*|(LOCAL_|NODE_|)RANK|(LOCAL_|)WORLD_SIZE|MASTER_(ADDR|PORT)|PYTHON(PATH|FAULTHANDLER)|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER)"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS|(GLOO|NCCL)_SOCKET_IFNAME|NVIDIA_VISIBLE_DEVICES"
)
"""Variables that say where a process is and what it was granted: nobody else sets them."""
TARGET: Final = re.compile(r"/[^/,\"\x00-\x1f\x7f][^,\"\x00-\x1f\x7f]*")
"""The form of a mount's target. It has one slash before all: `os.path.normpath` keeps two, and `//etc` is /etc nevertheless."""
TAKEN: Final = re.compile(r"/(slipway|proc|sys|dev|etc|tmp)(/|$)")
"""Places in a container that are its own, or ours."""
REQUIREMENT: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(==[A-Za-z0-9][A-Za-z0-9.!+_-]{0,99})?$")
SCRIPTS: Final = (".py", ".sh")
MAX_TEXT: Final = 1000


def _is_word(text: str) -> bool:
    return 0 < len(text) <= MAX_TEXT and text.isprintable()


def _is_target(text: str) -> bool:
    return bool(TARGET.fullmatch(text)) and os.path.normpath(text) == text and not TAKEN.match(text)


def _argument(value: object) -> object:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if value == "" or (isinstance(value, str) and _is_word(value)):
        return value
    raise wrong(value, f"a word or line of at most {MAX_TEXT} characters, a finite number, or true or false")


def _expression(value: object) -> object:
    if not isinstance(value, str):
        raise wrong(value, "a regular expression, in single quotes")
    fault = expression_fault(value)
    if fault is not None:
        raise PydanticCustomError("slipway", "{text}", {"text": f"found {kind_of(value)}, {fault}"})
    return value


_SCALAR: Final = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean")]}
Argument = Annotated[Any, BeforeValidator(_argument), WithJsonSchema(_SCALAR)]
ArgumentName = Annotated[str, text_that(ARGUMENT.fullmatch, f"the name of an argument: {ARGUMENT_RULE}")]
Arguments = dict[ArgumentName, Argument]
Requirement = Annotated[
    str,
    text_that(REQUIREMENT.fullmatch, "a package as name==version, or a word that is imported, such as numpy"),
    WithJsonSchema({"type": "string", "pattern": REQUIREMENT.pattern}),
]
WORD_RULE: Final = f"a word of the command: text of at most {MAX_TEXT} characters; quote what looks like a number"
Word = Annotated[str, text_that(_is_word, WORD_RULE), WithJsonSchema({"type": "string", "minLength": 1})]
Variable = Annotated[
    str,
    text_that(
        lambda text: VARIABLE.fullmatch(text) and not OURS.fullmatch(text),
        "the name of an environment variable, and none that Slipway sets itself",
    ),
]
VariableText = Annotated[str, text_that(lambda text: text == "" or _is_word(text), WORD_RULE)]
Source = Annotated[
    str,
    text_that(
        lambda text: text != "" and text.isprintable() and not {",", '"'} & set(text),
        "a path without comma or quote, which an engine takes as the end of it",
    ),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
Target = Annotated[
    str,
    text_that(_is_target, "an absolute path such as /tokenizer, without comma or quote, that is none of the system's or of Slipway's"),
    WithJsonSchema({"type": "string", "pattern": "^/"}),
]


Expression = Annotated[
    str, BeforeValidator(_expression), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_EXPRESSION, "format": "regex"})
]


class Mount(Part):
    """What a program finds beside its dataset, such as a tokenizer; it is where it is, and is not staged."""

    source: Source = Field(
        description="a file or directory that all nodes have, relative to the study file. A node without it ends the run before a rank "
        "starts"
    )
    target: Target = Field(description="the path in the container; with `engine: bare` it must be the same as `source`")
    writable: Flag = Field(default=False, description="whether the program may write to it")


class Sidecar(Part):
    """A process around the ranks, such as a parameter server or the master of a cluster of another kind."""

    name: Name = Field(description="name of the sidecar in messages and of its log `logs/sidecar-<name>-<node>.log`")
    where: Literal["head", "each"] = Field(description="`head`: one sidecar on the head node. `each`: one on each node")
    command: Several[Word] = Field(description="the command, word by word, with the placeholders of the program's own command")
    env: dict[Variable, VariableText] = Field(
        default={},
        description="environment variables, beside those that all processes get (`SLIPWAY_...`, threads, GPUs), `MASTER_ADDR`, "
        "`MASTER_PORT`, `SLIPWAY_SIDECAR` (its name) and those of `dmlc` without a role, which it may not set",
    )
    ends: rank_variables.SidecarEnds = Field(
        default="stopped",
        description="`stopped`: Slipway ends it (TERM, after 5 s KILL) when all ranks have ended. `with-ranks`: it ends by itself, with "
        "exit code 0, when the ranks do, as MXNet's servers; Slipway does not wait for it",
    )


class LogLines(Part):
    """How the steps of a program that writes no events are found in its output."""

    step: Expression = Field(
        description="regular expression of Python's `re`, at most 1,000 characters. A line that matches reports steps. Its named groups "
        "are `step`, `seconds`, `milliseconds`, `steps`, `loss`, `samples`, `tokens`, `epoch` and `epoch_steps`"
    )
    every: Annotated[int, Strict(), Field(ge=1, le=MAX_EVERY)] = Field(
        default=1, description="number of steps from one such line to the next, where the line has no group `step`"
    )
    ranks: Literal["first", "all"] = Field(
        default="first",
        description="`first`: the output of rank 0 is searched, and its window is the run's. `all`: the output of each rank",
    )


class LogEvents(Part):
    """The key `events` of a program whose steps are read from what it prints."""

    log: LogLines = Field(description="how a line with steps looks")


class CudaOnly(Part):
    """Words that need a GPU."""

    precision: tuple[Precision, ...] = Field(default=(), description="words of `precision` that need a GPU")
    layout: tuple[Layout, ...] = Field(default=(), description="words of `layout` that need a GPU")
    comm_hook: tuple[CommHook, ...] = Field(default=(), description="words of `comm_hook` that need a GPU")


class Supports(Part):
    """What cells of a program may ask for, as framework.yaml of Slipway's own frameworks says it; without a key: anything."""

    modes: Several[Mode] = Field(default=ABSENT, description="valid for `mode`")
    models: Several[Name] = Field(default=ABSENT, description="valid for `model`")
    precision: Several[Precision] = Field(default=ABSENT, description="valid for `precision`")
    layout: Several[Layout] = Field(default=ABSENT, description="valid for `layout`")
    comm_hook: Several[CommHook] = Field(default=ABSENT, description="valid for `comm_hook`")
    devices: Several[Literal["cpu", "cuda"]] = Field(default=ABSENT, description="valid for `device`")
    strategies: Several[Strategy] = Field(default=ABSENT, description="valid for `strategy`")
    backends: Several[Backend] = Field(default=ABSENT, description="valid for `backend`")
    augmentation: Several[Augmentation] = Field(default=ABSENT, description="valid for `augmentation`")
    readers: Several[Reader] = Field(default=ABSENT, description="valid for `reader`")
    conv_algorithm: Several[ConvAlgorithm] = Field(default=ABSENT, description="valid for `conv_algorithm`")
    cuda_only: CudaOnly = Field(default=CudaOnly(), description="words of `precision`, `layout` and `comm_hook` that need a GPU")


class Program(Part):
    """A training program of the user's own: a folder with its files, or a command that the image or the node has."""

    folder: TextLine = Field(
        default=ABSENT,
        description="folder of the program's files, relative to the study file. Every node of a run works with a read-only copy. At "
        "most 5000 files and 64 MiB, no links, no file that everybody can write or that another user owns. `.git`, "
        "`__pycache__`, `.venv`, `venv` and caches of tools are left out",
    )
    command: Several[Word] = Field(
        description="one process, word by word. Required, here or in [framework.yaml](#frameworkyaml-in-the-folder). It runs in the "
        "output directory, which is empty, so a file of the folder is `{folder}/FILE`. "
        "[Placeholders](#placeholders-of-a-command) are filled in"
    )
    launcher: rank_variables.Launcher = Field(
        default="torchrun",
        description="`torchrun`: one torchrun per node. `ranks`: one process per GPU with `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and the "
        "like. `single`: one process in all, which drives sidecars on all nodes. `mpirun`: one mpirun for all, without ssh",
    )
    image: TextLine = Field(default=ABSENT, description="container image; required if the `engine` of the site is not `bare`")
    python: Word = Field(
        default="python3",
        description="the interpreter in the image. With `engine: bare`: a path that all nodes have, relative to the study file, or a "
        "name without `/`, which means Slipway's own interpreter",
    )
    mounts: tuple[Mount, ...] = Field(
        default=(), description="what the program finds beside its dataset, such as a tokenizer: [mounts](#mounts). Mounts are not staged"
    )
    unit: Literal["samples", "tokens"] = Field(
        default="samples",
        description="what the rate of its runs counts. With `tokens` the program reports how many tokens a step had; `batch_size` stays "
        "in samples",
    )
    env: dict[Variable, VariableText] = Field(
        default={}, description="environment variables of its processes. Variables that Slipway sets itself, such as `RANK`, are refused"
    )
    env_from: tuple[rank_variables.Rendering, ...] = Field(
        default=(),
        description="variables of each rank that describe the allocation as this framework expects it; with `launcher: ranks` or `single`",
    )
    sidecars: tuple[Sidecar, ...] = Field(
        default=(), description="processes around the ranks, such as parameter servers, at most 32: [sidecars](#sidecars)"
    )
    version: Count = Field(
        default=1, description="part of the cell: raise it when the program changes in a way that changes numbers, and its runs are new"
    )
    checkpoint: Flag = Field(default=False, description="whether the program writes a checkpoint when asked, and resumes from one")
    events: Literal["program", "none"] | LogEvents = Field(
        default="program",
        description="who reports steps. `program`: the program writes events, as with `slipway_events`. `none`: nobody, "
        "and the run has wall times only. A mapping `log:` with the [keys below](#events-log): Slipway reads steps from the "
        "output",
    )

    supports: Supports = Field(
        default=ABSENT, description="what cells of the program may ask for: [supports](#supports). Keys that are left out allow anything"
    )
    packages: tuple[Requirement, ...] = Field(
        default=(),
        description="packages of its interpreter, as `name==version` or as a word that is imported. Without containers every node "
        "checks them before a rank starts; `slipway plan`, `run` and `submit` check first where the interpreter is "
        "Slipway's own or this machine is the node. With `launcher: torchrun` torch is one of them. Packages are no part of "
        "the cell",
    )

    def resolved(self, name: str, folder: Path) -> dict[str, Any]:
        """Return what a cell carries: plain values, and absolute paths, for which relative ones are relative to `folder`, the study's.

        The limits of what cells may ask for are left out: they have been checked when there is a cell.
        """
        plain = self.model_dump(exclude_none=True, exclude={"supports"})
        if not self.packages:
            del plain["packages"]  # as in cells of before the key
        if self.unit == DEFAULTS["unit"]:
            del plain["unit"]  # as in studies of before the key: in all of these cells it is not there
        if plain["events"] == "program":
            del plain["events"]  # as in cells of versions that knew no other
        if self.folder is not None:
            plain["folder"] = str(absolute_path(self.folder, folder))
        if "/" in self.python:
            plain["python"] = str(absolute_path(self.python, folder))
        mounts = sorted(self.mounts, key=lambda mount: mount.target)
        plain["mounts"] = [{**mount.model_dump(), "source": str(absolute_path(mount.source, folder))} for mount in mounts]
        return {"name": name, **plain}


DEFAULTS: Final = {key: field.default for key, field in Program.model_fields.items()}


def identity(program: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a resolved program that identifies a cell: what differs from the defaults.

    A new key with a default does not change it.
    """
    return {key: value for key, value in program.items() if key not in PROGRAM_PLACES and (key not in DEFAULTS or value != DEFAULTS[key])}


def program_faults(
    programs: Mapping[str, Program], arguments: Mapping[str, frozenset[str]], bare: Collection[str], folder: Path
) -> Iterator[Fault]:
    """Yield faults of programs beyond their keys; where there is none, `Program.resolved` raises nothing.

    `arguments`: program -> the names of the arguments that all its cells have; `bare`: programs of which a cell has no dataset;
    `folder`: the study's.
    """
    for name, program in programs.items():
        place = ("programs", name)
        of_sidecars: dict[KeyPath, tuple[str, ...]] = {
            ("sidecars", number, "command"): sidecar.command for number, sidecar in enumerate(program.sidecars)
        }
        commands = {("command",): program.command, **of_sidecars}
        try:
            program.resolved(name, folder)
        except ValueError as error:
            yield Fault(place=place, message=str(error))
            continue
        if name in frameworks.NAMES:
            yield Fault(place=place, message=f"found {name!r}, which is a framework of Slipway's; valid: another name")
        if program.folder is None and any("{folder}" in word for command in commands.values() for word in command):
            yield Fault(place=(*place, "command"), message="found {folder}, and the program has no folder; valid: folder: PATH beside it")
        if program.folder is not None and (wrong_path := _folder_fault(program.folder, folder)):
            yield Fault(place=(*place, "folder"), message=f"found {program.folder!r}, {wrong_path}; valid: a directory")
        else:
            files = None if program.folder is None else absolute_path(program.folder, folder)
            for inner, command in commands.items():
                yield from _file_faults((*place, *inner), command, files)
        if program.launcher == "torchrun" and Path(program.command[0]).name == "torchrun":
            message = "found torchrun, which the launcher torchrun starts itself; valid: {python} and the script, or launcher: single"
            yield Fault(place=(*place, "command", 0), message=message)
        yield from _rendering_faults((*place, "env_from"), program)
        yield from _mount_faults((*place, "mounts"), program.mounts)
        yield from _events_faults(place, program)
        yield from _sidecar_faults(place, program)
        for inner, command in commands.items():
            for number, word in enumerate(command):
                yield from _placeholder_faults((*place, *inner, number), word, arguments.get(name), name in bare)


def _sidecar_faults(place: KeyPath, program: Program) -> Iterator[Fault]:
    for number, sidecar in enumerate(program.sidecars):
        for name in program.env_from:
            for variable in sorted(rank_variables.FOR_SIDECARS.get(name, frozenset()) & sidecar.env.keys()):
                message = f"found it here, and env_from: [{name}] sets it for sidecars too; valid: one of the two"
                yield Fault(place=(*place, "sidecars", number, "env", variable), message=message)
        if sidecar.name in [before.name for before in program.sidecars[:number]]:
            found = f"found {sidecar.name!r} a second time"
            yield Fault(place=(*place, "sidecars", number, "name"), message=f"{found}; valid: each name once")
        if program.launcher == "mpirun" and sidecar.name in rank_variables.MPI_SIDECARS:
            found = f"found {sidecar.name!r}, which the launcher mpirun has for one of its own"
            yield Fault(place=(*place, "sidecars", number, "name"), message=f"{found}; valid: another name")


def _rendering_faults(place: KeyPath, program: Program) -> Iterator[Fault]:
    if program.env_from and program.launcher in ("torchrun", "mpirun"):
        found = f"found {', '.join(program.env_from)} with launcher {program.launcher}, which sets the variables of its ranks itself"
        yield Fault(place=place, message=f"{found}; valid: launcher: ranks, or single")
    for name in program.env_from:
        for variable in sorted(rank_variables.VARIABLES[name] & program.env.keys()):
            yield Fault(place=place, message=f"found {name}, which sets {variable}, and env sets it too; valid: one of the two")


def _events_faults(place: KeyPath, program: Program) -> Iterator[Fault]:
    if program.events != "program" and program.checkpoint:
        message = "found true, and a program that writes no events cannot tell of a checkpoint; valid: false"
        yield Fault(place=(*place, "checkpoint"), message=message)
    if isinstance(program.events, LogEvents) and (fault := every_fault(program.events.log.step, program.events.log.every)):
        yield Fault(place=(*place, "events", "log", "every"), message=f"found {program.events.log.every}; {fault}")
    if program.unit == "tokens" and isinstance(program.events, LogEvents) and not reports(program.events.log.step, "tokens"):
        message = "found an expression without the group tokens, and unit: tokens has no rate without it; valid: (?P<tokens>...) in it"
        yield Fault(place=(*place, "events", "log", "step"), message=message)


def _placeholder_faults(place: KeyPath, word: str, arguments: frozenset[str] | None, is_bare: bool) -> Iterator[Fault]:
    for found in rank_variables.wrong_ports_in(word):
        message = f"found {found}, which is no name of a port; valid: lower-case letters, digits and '_', such as {{port.server}}"
        yield Fault(place=place, message=message)
    for found in rank_variables.names_in(word):
        if is_bare and found == "data":
            message = "found {data}, and cells of this program have no dataset; valid: dataset: NAME for them, or no {data}"
            yield Fault(place=place, message=message)
        known = (
            *rank_variables.PLACES,
            *rank_variables.NETWORK_PLACES,
            *rank_variables.CELL_PLACES,
            rank_variables.STEPS_PLACEHOLDER,
            *(f"args.{name}" for name in sorted(arguments or ())),
        )
        if found.startswith(rank_variables.PORT) or (found.startswith("args.") and arguments is None):
            continue
        if found not in known:
            name = found.removeprefix("args.")
            reason = "which is not known" if name == found else f"and some or all cells of this program have no `args: {{{name}: ...}}`"
            yield Fault(place=place, message=f"found {{{found}}}, {reason}; {choices(found, known)}")


def _mount_faults(place: KeyPath, mounts: tuple[Mount, ...]) -> Iterator[Fault]:
    targets = [mount.target for mount in mounts]
    for number, mount in enumerate(mounts):
        if mount.target in targets[:number]:
            yield Fault(place=(*place, number, "target"), message=f"found {mount.target!r} a second time; valid: each target once")


def _file_faults(place: KeyPath, command: Sequence[str], folder: Path | None) -> Iterator[Fault]:
    """Yield faults of words that name a file which is not where the command looks for it.

    A command runs in the run's output directory, which is empty.
    """
    scripts = {number for number, before in enumerate(command, 1) if before in ("{python}", "python", "python3")}
    for number, word in enumerate(command):
        inside = word.removeprefix("{folder}/")
        if rank_variables.names_in(inside) or inside.startswith(("/", "~")):
            continue
        is_there = folder is not None and os.path.exists(folder / inside)  # noqa: PTH110 - a word may be too long for a name
        if word != inside and folder is not None and not is_there:
            message = f"found {word!r}, which is not in the program's folder {folder}; valid: a file that is there"
            yield Fault(place=(*place, number), message=message)
        if word == inside and ((is_there and word.endswith(SCRIPTS)) or (number in scripts and word[0] != "-")):
            valid = f"{{folder}}/{os.path.normpath(word)}" if is_there else "{folder}/FILE, or an absolute path"
            found = f"found {word!r}, and a command runs in the run's output directory, where no such file is"
            yield Fault(place=(*place, number), message=f"{found}; valid: {valid}")


def _folder_fault(text: str, folder: Path) -> str | None:
    path = absolute_path(text, folder)
    if not path.is_dir():
        return f"which is no directory ({path})" if path.exists() else f"which is not there ({path})"
    try:
        program_folder.check(path)
    except SlipwayError as error:
        return f"which cannot be taken along: {error}"
    return None


# The file `framework.yaml` in the folder of a program: its keys need not stand in the study file.


FILE: Final = "framework.yaml"


def with_program_files(document: Document) -> Document:
    """Add to the study the keys of the files in the folders of its programs.

    Raises ConfigError: a file that cannot be read, a key that stands in both, or that is none of a program.
    """
    programs = document.value.get("programs")
    found = dict(_files(programs, Path(os.path.abspath(document.path)).parent)) if isinstance(programs, dict) else {}
    for name, file in found.items():
        document = _merged(document, name, file)
    return document


def _files(programs: Mapping[str, Any], study_folder: Path) -> Iterator[tuple[str, Document]]:
    """Yield the files in the folders of programs. A folder that is none is refused elsewhere."""
    for name, program in programs.items():
        folder = program.get("folder") if isinstance(program, dict) else None
        if not isinstance(folder, str) or not folder:
            continue
        try:
            path = absolute_path(folder, study_folder) / FILE
        except ValueError:
            continue
        if os.path.lexists(path):
            yield name, read_document(path, "program")


def _merged(document: Document, name: str, file: Document) -> Document:
    place: KeyPath = ("programs", name)
    own = document.value["programs"][name]
    also = {key: f"{document.where((*place, key))}: programs.{name}.{key}" for key in own}
    faults = [Fault(place=(key,), message=words) for key in file.value if (words := _wrong_key(key, also.get(key)))]
    if faults:
        raise fault_error(file, faults)
    programs = {**document.value["programs"], name: {**own, **file.value}}
    return replace(
        document,
        value={**document.value, "programs": programs},
        lines=document.lines | {(*place, *inner): line for inner, line in file.lines.items()},
        files=document.files | {(*place, key): file.path for key in file.value},
    )


def _wrong_key(key: str, also: str | None) -> str | None:
    if key == "folder":
        return "this file lies in the folder; valid: folder in the study file"
    return f"found here and in {also}; valid: one of the two" if also else None


BATCH: Final = frozenset({"batch_size", "global_batch_size"})


def program_notes(programs: Mapping[str, Program], arguments: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return what may make a row of the table wrong: a batch, or arguments, of the study that the command of a program does not use.

    `arguments`: program and names of its arguments, of each cell that has one.
    """
    given: dict[str, set[str]] = {}
    for name, names in arguments:
        given.setdefault(name, set()).update(names)
    commands = {name: (programs[name].command, *(sidecar.command for sidecar in programs[name].sidecars)) for name in sorted(given)}
    used = {name: {found for words in commands[name] for word in words for found in rank_variables.names_in(word)} for name in commands}
    by_any = set().union(*used.values())
    notes = []
    for name in commands:
        program = programs[name]
        lines = program.events.log.step if isinstance(program.events, LogEvents) and program.unit == "samples" else None
        if lines is not None and not reports(lines, "samples") and not used[name] & BATCH:
            notes.append(
                f"program {name}: its output reports no samples, and no word of its command uses {{batch_size}}: the rate takes batch_size "
                "of the study, whatever the program does; write {batch_size} into its command, or the group samples into its expression"
            )
        if unread := sorted(f"args.{argument}" for argument in given[name] if f"args.{argument}" not in by_any):
            notes.append(
                f"program {name}: no word of its command uses {some(unread, 4)}; that is right if the program itself asks for it, "
                f"as SLIPWAY_ARG_{unread[0].removeprefix('args.').upper()} or run.args"
            )
    return notes
