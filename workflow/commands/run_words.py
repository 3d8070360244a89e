"""Sort the words that were typed after `slipway run`: which are ours, and which are Snakemake's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from base.errors import ConfigError

_CONFIG: Final = ("--config", "-C")
_CONFIGFILE: Final = ("--configfile", "--configfiles")
_STUDY: Final = ("--study", "-s")
LOOKS: Final = frozenset(
    (
        *("--dag", "--rulegraph", "--filegraph", "--list", "-l", "--list-rules", "--list-target-rules", "--lt", "--list-changes", "--lc"),
        *("--summary", "-S", "--detailed-summary", "-D", "--report", "--lint", "--archive", "--unlock", "--touch", "-t", "--version", "-v"),
        *("--cleanup-metadata", "--cm", "--delete-all-output", "--delete-temp-output", "--list-input-changes", "--li"),
        *("--list-params-changes", "--lp", "--list-untracked", "--lu", "--d3dag", "--print-compilation", "--generate-unit-tests"),
        *("--export-cwl", "--containerize", "--help", "-h"),
    )
)
"""Options with which Snakemake runs nothing: what it prints is what was asked for."""
DRY: Final = frozenset(("-n", "--dry-run", "--dryrun"))
_FLAGS: Final = "hFDSaflknptv"
"""Snakemake's options of one letter that take no value: several may stand behind one dash."""
_NO_VALUE: Final = frozenset((*(f"-{letter}" for letter in _FLAGS), *DRY, "--keep-going", "--forceall", "--printshellcmds", "--nolock"))


@dataclass(frozen=True, kw_only=True)
class Words:
    """`study`: the file, where one was named. `config`: all of Snakemake's --config, those words of ours that mean the same included;
    `rest`: for Snakemake, as they were typed."""

    study: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[str, ...] = ()

    @property
    def looks(self) -> bool:
        """Whether nothing is to be run."""
        return any(name in LOOKS for word in self.rest for name in _names(word))

    @property
    def dry(self) -> bool:
        """Whether it is to be told what would run."""
        return any(name in DRY for word in self.rest for name in _names(word))

    def has(self, *names: str) -> bool:
        """Whether one of Snakemake's options of these names is among them."""
        return any(word.partition("=")[0] in names for word in self.rest)


def sort_words(words: Sequence[str], ours: Mapping[str, str | None]) -> Words:
    """`words` as they were typed, without our own options: those are in `ours`, by the keys of --config that they mean. Raises
    ConfigError."""
    studies: list[str] = []
    config: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    if left and not left[0].startswith("-"):
        studies.append(left.pop(0))
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name in (*_CONFIG, *_CONFIGFILE, *_STUDY):
            values = [value] if equals else _values(left, 1 if name in _STUDY else len(left))
            if name not in _CONFIG:
                studies += values
            for pair in values if name in _CONFIG else ():
                _add(config, pair)
        else:
            rest.append(word)
    for key, given in ours.items():
        if given is not None:
            _add(config, f"{key}={given}")
    _refuse_studies(studies, rest)
    return Words(study=studies[0] if studies else None, config=config, rest=tuple(rest))


def _names(word: str) -> list[str]:
    """The options that `word` is: `-np` is two."""
    if not word.startswith("-") or word.startswith("--"):
        return [word.partition("=")[0]]
    names = []
    for letter in word[1:]:
        names.append(f"-{letter}")
        if letter not in _FLAGS:
            break
    return names


def _values(left: list[str], most: int) -> list[str]:
    """The words up to the next option, at most so many, taken away."""
    count = next((index for index, word in enumerate(left[:most]) if word.startswith("-")), min(most, len(left)))
    taken, left[:] = left[:count], left[count:]
    return taken


def _add(config: dict[str, str], pair: str) -> None:
    key, equals, value = pair.partition("=")
    if not equals:
        raise ConfigError(f"--config {pair}: found {pair!r}, valid: KEY=VALUE, such as retry=failed")
    if config.setdefault(key, value) != value:
        raise ConfigError(f"{key} was given twice, as {config[key]!r} and as {value!r}; leave one of them out")


def _refuse_studies(studies: Sequence[str], rest: Sequence[str]) -> None:
    """More than one; or one behind Snakemake's options, which cannot be told from their values."""
    more = _more_studies(rest)
    found = [*studies, *more]
    if len(found) > 1:
        raise ConfigError(f"one study at a time; found {len(found)}: {', '.join(found)}")
    if more:
        raise ConfigError(f"the study comes first: slipway run {more[0]} ..., then the options for Snakemake")


def _more_studies(rest: Sequence[str]) -> list[str]:
    """Words that look like study files, and are not the value of the option before them."""
    found = []
    for before, word in zip(("", *rest), rest, strict=False):
        takes_it = before.startswith("-") and not all(name in _NO_VALUE for name in _names(before))
        if word.endswith((".yaml", ".yml")) and not word.startswith("-") and not takes_it:
            found.append(word)
    return found
