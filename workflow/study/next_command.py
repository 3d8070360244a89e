"""Propose what to type to continue a study: the whole command, quoted, since people copy it from the screen. Pure."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workflow.study.study import Study

_PROPOSED: Final = re.compile(r"`slipway (?P<words>[^`]+)`")
_STUDY_FIRST: Final = ("run", "plan", "submit", "status", "tables", "report", "verify")
_STUDY_BY_OPTION: Final = ("logs", "dataset build", "dataset info", "dataset verify", "dataset stage", "dataset bench")
_OF_SESSIONS: Final = ("session ls", "session attach", "session stop")
_AT_A_SITE: Final = (*_STUDY_FIRST, *_STUDY_BY_OPTION, *_OF_SESSIONS, "cache ls", "cache rm", "reap", "doctor")
PLACEHOLDER: Final = "STUDY"
"""The word that stands in a message for the study file."""


def command(study: Study, verb: str = "run", *options: str) -> str:
    """Return a whole command: `slipway run photos.yaml --adopt --site here.yaml`.

    The site is named where it was chosen, by option or variable.
    """
    return study.command(verb, str(study.path), *options)


def completed(text: str, site: str | None, study: Path | None = None) -> str:
    """Complete the commands between backticks in `text`.

    Packages that know nothing of sites and study files propose `slipway reap`; who passes their words on knows the chosen site (None:
    nobody chose), and which study it is about.
    """
    return _PROPOSED.sub(lambda match: f"`slipway {_whole(match['words'], site, study)}`", text)


def _whole(typed: str, site: str | None, study: Path | None) -> str:
    try:
        words = shlex.split(typed)
    except ValueError:
        return typed
    verb = " ".join(words[: 2 if words[0] in ("dataset", "cache", "session") else 1])
    length = len(verb.split())
    rest, named = words[length:], str(study)
    if study is not None and PLACEHOLDER in rest:
        rest = [named if word == PLACEHOLDER else word for word in rest]
    elif study is not None and verb in _STUDY_FIRST and (not rest or rest[0].startswith("-")):
        rest = [named, *rest]
    elif (
        study is not None and verb in (*_STUDY_BY_OPTION, *_OF_SESSIONS) and "--study" not in rest and not any("/" in word for word in rest)
    ):
        rest = [*rest, "--study", named]
    if site is not None and verb in _AT_A_SITE and not {"--site", "--write-site"} & set(rest):
        rest = [*rest, "--site", site]
    return typed if rest == words[length:] else shlex.join([*words[:length], *rest])
