"""Read what is compared: a results directory or a study file, all of its cells or those that words choose."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from base.errors import ConfigError, RecordError
from base.humanize import choices, some
from extras.compare.fields import Facts, facts_of
from workflow.commands.chosen_study import results_as_they_are
from workflow.report.analysis import Analysis, analyse
from workflow.report.cells import MEASURED, CellResult
from workflow.report.collect import collect
from workflow.run.record.reading import find_record, read_value
from workflow.study.cell import Cell, plain_text
from workflow.study.series import IMPLIED_BY_FRAMEWORK, flat

MAX_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison: its cells, and what was typed for it. `chosen`: the keys and values by which they were chosen."""

    name: str
    analysis: Analysis
    cells: tuple[CellResult, ...]
    chosen: Mapping[str, str]

    def runs(self, cells: Iterable[CellResult]) -> pl.DataFrame:
        """Return the rows of the measured runs of cells."""
        return self.analysis.frame.filter(MEASURED & pl.col("cell_id").is_in([cell.cell_id for cell in cells]))

    def facts(self, cell: CellResult) -> list[Facts]:
        """Return all fields of each measured run of a cell. Raises RecordError where a record was exchanged since its row was made."""
        (source,) = self.analysis.sources
        return [_facts(source.directory / "runs", run_id) for run_id in self.runs([cell])["run_id"]]


def _facts(runs: Path, run_id: str) -> Facts:
    found = find_record(str(runs), run_id)
    try:
        return facts_of(read_value(found.content or b""))
    except RecordError as error:
        raise RecordError(f"{runs / str(found.path)}: {error}") from error
    except RecursionError as error:
        raise RecordError(f"{runs / str(found.path)}: what a program told in it is nested too deeply") from error


def read_side(typed: str, site: str | None) -> Side:
    """Read `PLACE` or `PLACE:KEY=VALUE,KEY=VALUE`. Raises ConfigError for a place that is not there, and for words that
    choose nothing."""
    place, words = _split(typed)
    chosen = dict(_word(typed, word) for word in words.split(",")) if words else {}
    analysis = analyse(collect(results_as_they_are(place, site, [place])))
    return Side(name=typed, analysis=analysis, cells=_chosen(analysis.cells, chosen, typed), chosen=chosen)


def _split(typed: str) -> tuple[Path, str]:
    """Return the longest beginning that is there, and the words behind its colon."""
    ends = [len(typed), *[place for place in range(len(typed) - 1, 0, -1) if typed[place] == ":"]]
    for end in ends:
        if "\0" not in typed and Path(typed[:end]).exists():
            return Path(typed[:end]), typed[end + 1 :]
    raise ConfigError(f"{typed}: no such file or directory; expected a results directory or a study file")


def _word(typed: str, word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not key or not equals:
        raise ConfigError(f"{typed}: expected KEY=VALUE, such as framework=pytorch, found {word!r}")
    return key, value


def keys_of(cell: CellResult) -> dict[str, object]:
    """Return the flat keys of a cell, such as `optimizer.learning_rate`."""
    return flat(cell.cell.to_json())


def _chosen(cells: Sequence[CellResult], chosen: Mapping[str, str], typed: str) -> tuple[CellResult, ...]:
    left = cells
    for key, value in chosen.items():
        values = {id(cell): plain_text(keys[key]) for cell in left if key in (keys := keys_of(cell))}
        if not values:
            raise ConfigError(f"{typed}: its cells have no key {key!r}; {choices(key, keys_of(left[0]) if left else ())}")
        found = [cell for cell in left if values.get(id(cell)) == value]
        if not found:
            raise ConfigError(f"{typed}: no cell has {key}={value}; they have {some(sorted(set(values.values())), MAX_SHOWN)}")
        left = found
    return tuple(left)


Pair = tuple[CellResult, CellResult]


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The cells of both sides with the same keys, and those that only one of them has."""

    pairs: tuple[Pair, ...]
    only_a: tuple[CellResult, ...]
    only_b: tuple[CellResult, ...]


def match(a: Side, b: Side) -> Matched:
    """Match the cells by all keys but those that the words of either side name.

    Raises ConfigError where nothing matches, where several cells have the same keys, and where both sides are the same runs.
    """
    named = {*a.chosen, *b.chosen}
    first, second = (_by_keys(side, named) for side in (a, b))
    pairs = tuple((cell, second[keys]) for keys, cell in first.items() if keys in second)
    if not pairs:
        raise ConfigError(f"no cell of {a.name} has the keys of one of {b.name}{_closest(first, second)}")
    seals = [set(side.runs(pair[place] for pair in pairs)["seal"].drop_nulls()) for place, side in enumerate((a, b))]
    if common := seals[0] & seals[1]:
        raise ConfigError(f"{a.name} and {b.name} have {len(common)} of the same runs, by their seals: nothing to compare")
    return Matched(
        pairs=pairs,
        only_a=tuple(cell for keys, cell in first.items() if keys not in second),
        only_b=tuple(cell for keys, cell in second.items() if keys not in first),
    )


def _by_keys(side: Side, named: set[str]) -> dict[str, CellResult]:
    found: dict[str, CellResult] = {}
    for cell in side.cells:
        keys = json.dumps(_matched_keys(cell.cell, named), sort_keys=True)
        if keys in found:
            one, other = keys_of(found[keys]), keys_of(cell)
            differing = [key for key in one if one[key] != other.get(key) and key != "cell_id"]
            raise ConfigError(
                f"{side.name}: several of its cells have the same other keys, and differ in {some(differing, MAX_SHOWN)}: choose one by "
                f"`{side.name}{',' if side.chosen else ':'}KEY=VALUE`"
            )
        found[keys] = cell
    return found


def _matched_keys(cell: Cell, named: set[str]) -> dict[str, object]:
    """Return the keys that must agree. What follows from a named one need not: the program of a framework, one batch of the other."""
    without = {"cell_id", *named}
    if "framework" in named:
        without |= {"program", *IMPLIED_BY_FRAMEWORK, *(["model"] if cell.model == cell.framework else [])}
    if "global_batch_size" in named:
        without.add("batch_size")
    elif named & {"nodes", "gpus_per_node", "batch_size"}:
        without.add("global_batch_size")
    return {key: value for key, value in flat(cell.to_json()).items() if key not in without}


def _closest(first: Mapping[str, CellResult], second: Mapping[str, CellResult]) -> str:
    """Say in which keys the two closest cells differ."""
    pairs = [(json.loads(one), json.loads(other)) for one in list(first)[:100] for other in list(second)[:100]]
    differing = [[key for key in {**one, **other} if one.get(key) != other.get(key)] for one, other in pairs]
    if not differing:
        return ": there are no cells"
    return f": the closest two differ in {some(min(differing, key=len), MAX_SHOWN)}; `PLACE:KEY=VALUE` on both sides compares across a key"
