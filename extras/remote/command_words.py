"""Parse what stands behind `slipway remote HOST`: the words of the command there, of which the study is a file here. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.humanize import choices, parse_size

OPTIONS: Final = {"--study": "study", "-s": "study", "--site": "site"}
"""Options whose values mean something here."""
OF_RESULTS: Final = {"--out": "out", "--max-bytes": "max_bytes"}
"""More of them, of commands whose results come down."""
MAX_BYTES: Final = "1GB"
"""What may come down at once unless `--max-bytes` names another limit: the host alone says what its results are, and it is not trusted."""
BY_OPTION: Final = ("logs", "tables", "report", "verify", "session")
SESSIONS: Final = ("notebook", "tensorboard", "serve", "run", "ls", "stop")
NEED_TERMINAL: Final = ("shell", "attach")
"""Commands of `slipway session` that need a terminal there."""
FOLLOW: Final = ("--follow", "-f")


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A command for the cluster. `study` is a file here, and None where a session names none; `out` is where results come down, and
    `max_bytes` how much of them at the most; `rest` goes to the cluster unchanged."""

    verb: str
    session: str = ""
    """The verb of `slipway session`."""
    study: Path | None
    site: str | None
    out: Path = Path()
    max_bytes: int = 0
    rest: tuple[str, ...]

    @property
    def follows(self) -> bool:
        return self.verb == "logs" and bool(set(FOLLOW) & set(self.rest))

    @property
    def makes_results(self) -> bool:
        """Return True if results are to come down: `tables` can also print one table only."""
        prints = bool({"--show", "--json"} & set(self.rest)) or any(not word.startswith("-") for word in self.rest)
        return self.verb in ("tables", "report") and not prints

    def for_cluster(self, host: str, there: str | None, site: str | None) -> list[str]:
        """Return the words behind `slipway` there. `host`: as the laptop calls the login node, which the line for the laptop needs."""
        words = [self.verb]
        if self.session:
            words.append(self.session)
        if there is not None:
            words += ["--study", there] if self.verb in BY_OPTION else [there]
        if site is not None:
            words += ["--site", site]
        options = self.rest[: self.rest.index("--")] if "--" in self.rest else self.rest
        if self.session not in ("", "stop") and not any(word.partition("=")[0] == "--login" for word in options):
            words += ["--login", host]
        return [*words, *self.rest]


def parse_typed(host: str, verb: str, words: Sequence[str]) -> Typed:
    """Parse the words behind a verb. Raises ConfigError where a study file or the value of an option is missing, and for a session that
    is none or needs a terminal."""
    if verb == "session":
        return _parse_session(host, words)
    found, rest = _sorted(verb, words, {**OPTIONS, **OF_RESULTS}, takes_study=True)
    if "study" not in found:
        example = "slipway remote HOST logs RUN --study study.yaml" if verb == "logs" else f"slipway remote HOST {verb} study.yaml"
        raise ConfigError(f"{verb}: found {' '.join(words) or 'nothing'}; the study file is missing: `{example}`")
    study = Path(found["study"])
    out = Path(found["out"]) if "out" in found else study.parent / "results" / study.stem
    try:
        max_bytes = parse_size(found.get("max_bytes", MAX_BYTES))
    except ValueError as error:
        raise ConfigError(f"{verb}: --max-bytes: {error}") from error
    return Typed(verb=verb, study=study, site=found.get("site"), out=out, max_bytes=max_bytes, rest=tuple(rest))


def _parse_session(host: str, words: Sequence[str]) -> Typed:
    session, *others = words or [""]
    if session in NEED_TERMINAL:
        raise ConfigError(f"session {session} needs a terminal on the cluster: `ssh -t {host} slipway {shlex.join(['session', *words])}`")
    if session not in SESSIONS:
        raise ConfigError(f"session: found {session or 'nothing'}; {choices(session, SESSIONS)}")
    end = others.index("--") if "--" in others else len(others)
    found, rest = _sorted(f"session {session}", others[:end], OPTIONS, takes_study=False)
    study = Path(found["study"]) if "study" in found else None
    return Typed(verb="session", session=session, study=study, site=found.get("site"), rest=(*rest, *others[end:]))


def _sorted(verb: str, words: Sequence[str], options: Mapping[str, str], *, takes_study: bool) -> tuple[dict[str, str], list[str]]:
    """Return the values of `options` and all other words. With `takes_study` a word that names a YAML file is the study."""
    found: dict[str, str] = {}
    rest: list[str] = []
    waiting: str | None = None
    for word in words:
        name, equals, value = word.partition("=")
        if waiting is not None:
            found[waiting], waiting = word, None
        elif name in options and equals:
            found[options[name]] = value
        elif name in options:
            waiting = options[name]
        elif takes_study and word.endswith((".yaml", ".yml")) and not word.startswith("-") and "study" not in found:
            found["study"] = word
        else:
            rest.append(word)
    if waiting is not None:
        raise ConfigError(f"{verb}: --{waiting.replace('_', '-')} has no value behind it")
    return found, rest
