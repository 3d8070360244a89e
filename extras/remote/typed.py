"""What stands behind `slipway remote HOST VERB`: the words of the command there, of which the study is a file here. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.names import choices
from base.units import parse_size

VALUED: Final = {"--study": "study", "-s": "study", "--site": "site", "--out": "out", "--max-bytes": "max_bytes"}
"""Options whose values mean something here."""
OF_RESULTS: Final = ("out", "max_bytes")
"""What a session has not, since no results come down."""
MAX_BYTES: Final = "1GB"
"""What may come down at once unless `--max-bytes` names another limit: the host alone says what its results are, and it is not trusted."""
BY_OPTION: Final = ("logs", "tables", "report", "verify")
SESSIONS: Final = ("notebook", "tensorboard", "serve", "run", "ls", "stop")
NEED_TERMINAL: Final = ("shell", "attach")
"""Of `slipway session`: what needs a terminal there."""
FOLLOW: Final = ("--follow", "-f")


@dataclass(frozen=True, kw_only=True)
class Typed:
    """`rest`: what goes to the cluster unchanged; `out`: where results come down, and `max_bytes`: how much of them at the most."""

    study: Path
    site: str | None
    out: Path
    max_bytes: int
    rest: tuple[str, ...]

    @property
    def follows(self) -> bool:
        """Whether it goes on until it is ended."""
        return bool(set(FOLLOW) & set(self.rest))

    @property
    def prints_only(self) -> bool:
        """Of `tables`: whether it prints one instead of making them, so that nothing comes down."""
        return bool({"--show", "--json"} & set(self.rest)) or any(not word.startswith("-") for word in self.rest)

    def for_cluster(self, verb: str, there: str, site: str | None) -> list[str]:
        """The words behind VERB there."""
        study = ["--study", there] if verb in BY_OPTION else [there]
        return [*study, *(["--site", site] if site is not None else []), *self.rest]


def sort_typed(verb: str, words: Sequence[str]) -> Typed:
    """Raises ConfigError unless one study file is named."""
    found: dict[str, str] = {}
    rest: list[str] = []
    waiting: str | None = None
    for word in words:
        name, equals, value = word.partition("=")
        if waiting is not None:
            found[waiting], waiting = word, None
        elif name in VALUED:
            if equals:
                found[VALUED[name]] = value
            else:
                waiting = VALUED[name]
        elif word.endswith((".yaml", ".yml")) and not word.startswith("-") and "study" not in found:
            found["study"] = word
        else:
            rest.append(word)
    if waiting is not None:
        raise ConfigError(f"{verb}: --{waiting.replace('_', '-')} has no value behind it")
    if "study" not in found:
        example = "slipway remote HOST logs RUN --study study.yaml" if verb == "logs" else f"slipway remote HOST {verb} study.yaml"
        raise ConfigError(f"{verb}: found {' '.join(words) or 'nothing'}; the study file is missing: `{example}`")
    study = Path(found["study"])
    out = Path(found["out"]) if "out" in found else study.parent / "results" / study.stem
    try:
        max_bytes = parse_size(found.get("max_bytes", MAX_BYTES))
    except ValueError as error:
        raise ConfigError(f"{verb}: --max-bytes: {error}") from error
    return Typed(study=study, site=found.get("site"), out=out, max_bytes=max_bytes, rest=tuple(rest))


@dataclass(frozen=True, kw_only=True)
class TypedSession:
    """`slipway remote HOST session VERB`. `study`: a file here, None: none was named; `rest`: what goes to the cluster unchanged."""

    verb: str
    study: Path | None
    site: str | None
    rest: tuple[str, ...]

    def for_cluster(self, there: str | None, site: str | None, host: str) -> list[str]:
        """The words behind `session` there. `host`: as the laptop calls the login node, which the line for the laptop needs."""
        study = ["--study", there] if there is not None else []
        options = self.rest[: self.rest.index("--")] if "--" in self.rest else self.rest
        named = any(word.partition("=")[0] == "--login" for word in options)
        login = [] if named or self.verb == "stop" else ["--login", host]
        return [self.verb, *study, *(["--site", site] if site is not None else []), *login, *self.rest]


def sort_session(host: str, words: Sequence[str]) -> TypedSession:
    """Raises ConfigError for what is no verb of `slipway session`, or needs a terminal."""
    verb, *others = words or [""]
    if verb in NEED_TERMINAL:
        raise ConfigError(f"session {verb} needs a terminal on the cluster: `ssh -t {host} slipway {shlex.join(['session', *words])}`")
    if verb not in SESSIONS:
        raise ConfigError(f"session: found {verb or 'nothing'}; {choices(verb, SESSIONS)}")
    end = others.index("--") if "--" in others else len(others)
    found: dict[str, str] = {}
    rest: list[str] = []
    waiting: str | None = None
    for word in others[:end]:
        name, equals, value = word.partition("=")
        if waiting is not None:
            found[waiting], waiting = word, None
        elif name in VALUED and VALUED[name] not in OF_RESULTS:
            waiting = None if equals else VALUED[name]
            if equals:
                found[VALUED[name]] = value
        else:
            rest.append(word)
    if waiting is not None:
        raise ConfigError(f"session {verb}: --{waiting.replace('_', '-')} has no value behind it")
    study = Path(found["study"]) if "study" in found else None
    return TypedSession(verb=verb, study=study, site=found.get("site"), rest=(*rest, *others[end:]))
