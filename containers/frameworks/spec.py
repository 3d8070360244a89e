"""`framework.yaml` as a checked value. No pydantic: the supervisor reads it, and its start-up time counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from base.errors import ConfigError
from base.foreign import quoted
from base.foreign import text as shown
from base.jsonfile import read_content
from base.names import choices, is_name
from containers.yamltext import parse_yaml

LAUNCHERS: Final = ("single", "torchrun", "ranks", "mpirun")
RENDERINGS: Final = ("tf_config", "paddle", "dmlc", "horovod")
Mode = Literal["train", "infer"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Layout = Literal["nchw", "nhwc"]
CommHook = Literal["none", "fp16", "bf16", "powersgd"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
PRECISIONS: Final[tuple[str, ...]] = get_args(Precision)
LAYOUTS: Final[tuple[str, ...]] = get_args(Layout)
COMM_HOOKS: Final[tuple[str, ...]] = get_args(CommHook)
DEVICES: Final = ("cpu", "cuda")
PLACEHOLDERS: Final = ("{python}", "{folder}")
MAX_BYTES: Final = 1 << 20
MAX_TEXT: Final = 2000
MAX_LIST: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """A process that lives around the ranks, on the head node or on each node."""

    where: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Supports:
    """What cells may ask of a framework. `cuda_only`: (field, word) pairs that need a GPU, such as (precision, fp16)."""

    modes: tuple[str, ...]
    models: tuple[str, ...]
    precision: tuple[str, ...]
    layout: tuple[str, ...]
    comm_hook: tuple[str, ...]
    devices: tuple[str, ...]
    cuda_only: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class FrameworkSpec:
    """A framework folder. `env`: renderings of the allocation as environment variables; `events`: `program`, or `log:<pattern>`;
    `python`: the interpreter inside the image (the bare engine has its own); `packages`: what that interpreter must be able to import,
    as requirements; `command`: one process, with {python} and {folder} to fill in; `checkpoint`: whether the program writes a checkpoint
    when asked, and resumes from one."""

    name: str
    folder: Path
    image: str
    python: str
    launcher: str
    env: tuple[str, ...]
    sidecars: tuple[Sidecar, ...]
    command: tuple[str, ...]
    events: str
    supports: Supports
    packages: tuple[str, ...]
    checkpoint: bool = False


def read_framework(path: Path) -> FrameworkSpec:
    """The specification in the file. Raises ConfigError naming file and key."""
    return parse_framework(read_content(path, ConfigError, MAX_BYTES), path)


def parse_framework(content: bytes, path: Path) -> FrameworkSpec:
    """The specification in `content`, which stands in `path`. Raises ConfigError naming file and key."""
    document = parse_yaml(content, path, ConfigError)
    top = _Keys(document, f"{path}", [field.name for field in fields(FrameworkSpec) if field.name != "folder"])
    name = top.text("name")
    if name != path.parent.name or not is_name(name):
        raise top.error("name", f"must be the name of its folder, {path.parent.name!r}")
    supports = _Keys(top.value("supports"), f"{path}: supports", [field.name for field in fields(Supports)])
    return FrameworkSpec(
        name=name,
        folder=path.parent,
        image=top.text("image"),
        python=top.text("python"),
        launcher=top.one_of("launcher", LAUNCHERS),
        env=top.words("env", RENDERINGS),
        sidecars=tuple(_sidecar(item, f"{path}: sidecars[{number}]") for number, item in enumerate(top.list("sidecars"))),
        command=_command(top),
        events=_events(top),
        supports=Supports(
            modes=supports.words("modes", MODES),
            models=supports.words("models", None),
            precision=supports.words("precision", PRECISIONS),
            layout=supports.words("layout", LAYOUTS),
            comm_hook=supports.words("comm_hook", COMM_HOOKS),
            devices=supports.words("devices", DEVICES),
            cuda_only=_cuda_only(supports),
        ),
        packages=top.words("packages", None),
        checkpoint=top.flag("checkpoint"),
    )


class _Keys:
    """One mapping of the document, read key by key; `where` starts every message."""

    def __init__(self, values: Any, where: str, known: list[str]) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: expected keys with values, found {type(values).__name__}")
        self.values: Mapping[str, Any] = values
        self.where = where
        for key in values:
            if key not in known:
                raise ConfigError(f"{where}: unknown key {shown(key, 80)!r}; {choices(shown(key, 80), known)}")

    def error(self, key: str, reason: str) -> ConfigError:
        return ConfigError(f"{self.where}: {key}: {reason}, found {quoted(self.values.get(key), 200)}")

    def value(self, key: str) -> Any:
        if key not in self.values:
            raise ConfigError(f"{self.where}: the key {key!r} is missing")
        return self.values[key]

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self.error(key, "expected text")
        if len(value) > MAX_TEXT:
            raise self.error(key, f"expected at most {MAX_TEXT} characters")
        return value

    def flag(self, key: str) -> bool:
        """False where it is not there."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, "expected true or false")
        return value

    def list(self, key: str) -> list[Any]:
        value = self.value(key)
        if not isinstance(value, list) or len(value) > MAX_LIST:
            raise self.error(key, "expected a list" if not isinstance(value, list) else f"expected at most {MAX_LIST} entries")
        return value

    def one_of(self, key: str, valid: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in valid:
            raise self.error(key, choices(value, valid))
        return value

    def words(self, key: str, valid: tuple[str, ...] | None) -> tuple[str, ...]:
        """A list of words, all among `valid` (None: any)."""
        value = self.list(key)
        for word in value:
            if not _is_word(word) or (valid is not None and word not in valid):
                found = shown(word, 80)
                raise self.error(key, f"{found!r} is not valid; {choices(found, valid)}" if valid else "expected a list of words")
        return tuple(value)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()


def _sidecar(item: Any, where: str) -> Sidecar:
    keys = _Keys(item, where, [field.name for field in fields(Sidecar)])
    env = keys.values.get("env", {})
    if not isinstance(env, Mapping) or not all(_is_word(name) and (_is_word(value) or type(value) is int) for name, value in env.items()):
        raise keys.error("env", "expected names with values, which are text or whole numbers")
    return Sidecar(
        where=keys.one_of("where", ("head", "each")),
        command=keys.words("command", None),
        env=tuple((name, str(value)) for name, value in env.items()),
    )


def _cuda_only(supports: _Keys) -> tuple[tuple[str, str], ...]:
    valid = {"precision": PRECISIONS, "layout": LAYOUTS, "comm_hook": COMM_HOOKS}
    keys = _Keys(supports.values.get("cuda_only", {}), f"{supports.where}: cuda_only", list(valid))
    return tuple((key, word) for key in keys.values for word in keys.words(key, valid[key]))


def _command(top: _Keys) -> tuple[str, ...]:
    words = top.words("command", None)
    unknown = [found for word in words for found in re.findall(r"{[^}]*}", word) if found not in PLACEHOLDERS]
    if not words or unknown:
        raise top.error("command", f"expected words, with no placeholder but {', '.join(PLACEHOLDERS)}")
    return words


def _events(top: _Keys) -> str:
    value = top.text("events")
    if value == "program":
        return value
    try:
        pattern = re.compile(value.removeprefix("log:"))
    except (re.error, OverflowError, RecursionError) as error:
        raise top.error("events", f"the pattern is not a regular expression ({error})") from error
    if not value.startswith("log:") or "step" not in pattern.groupindex:
        raise top.error("events", "expected `program`, or `log:` and a regular expression with a group named step")
    return value
