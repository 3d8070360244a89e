"""Make the chapter of the page that puts two runs, two cells or two studies side by side: its data, which side_by_side.js shows.

Any two rows of the page can be chosen. The data are a part of the page, so that they need no network and no server: every text stands once,
and curves stop where MAX_CURVE_BYTES are full.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.cell_columns import cell_anchor, cell_label
from workflow.report.cells import END, MEASURED, RUN_MARKS, Estimate, marks_as_columns
from workflow.report.curves import curves_of
from workflow.report.table import estimate_text
from workflow.run.record.parquet_columns import PROVENANCE, SHOWN_STEPS
from workflow.study.cell import plain_text
from workflow.study.series import flat

SCRIPT: Final = Path(__file__).with_name("side_by_side.js").read_text("utf-8")
MAX_RUNS: Final = 1000
"""The most runs that can be chosen; of a larger study its cells can."""
MAX_CURVE_BYTES: Final = 250_000
PRECISION: Final = 4
MAX_TEXT: Final = 500
TEXT: Final = (
    "Choose two rows of the tables by the boxes before them, or two names here: what differs comes first. One alone shows its own steps, "
    "with warm-up, evaluations and checkpoints."
)
NUMBERS: Final = {
    "rate_per_s": ("rate [per second]", 1.0),
    "step_p50_s": ("step, median [ms]", 1e3),
    "step_p95_s": ("step, p95 [ms]", 1e3),
    "first_step_s": ("first step [s]", 1.0),
    "num_measured_steps": ("measured steps", 1.0),
    "window_s": ("measured window [s]", 1.0),
    "input_wait_mean_s": ("wait for input per step [ms]", 1e3),
    "first_loss": ("first loss", 1.0),
    "final_loss": ("final loss", 1.0),
    "eval_loss": ("loss of the evaluation", 1.0),
    "eval_accuracy": ("accuracy", 1.0),
    "peak_memory_bytes": ("peak memory of a process [MiB]", 1 / 2**20),
    "mfu": ("model FLOP utilisation", 1.0),
    **{f"{step}_s": (f"{step} [s]", 1.0) for step in SHOWN_STEPS},
    "run_s": ("run [s]", 1.0),
}
"""Results of a run: column -> title, and the factor to its unit."""
OWN_TEXTS: Final = ("attempt", "start", "job_id")
COMMON_TEXTS: Final = (
    *("hosts", "machine", "gpu_models", "site", "scheduler", "scheduler_version", "engine", "device", "threads_per_rank"),
    *("dataset_digest", *PROVENANCE),
)
"""Columns that tell where a run comes from, and that many runs have in common: each combination stands once."""
RATIOS: Final = (*("rate_per_s", "step_p50_s", "step_p95_s", "first_step_s", "window_s"), *("peak_memory_bytes", "mfu", "train_s", "run_s"))
"""The numbers whose ratio says something."""
MEASURED_ONLY: Final = ("rate_per_s", "step_p50_s", "step_p95_s")


class _Texts:
    """The texts of the data, each of which stands once and is named by its number. 0 is what is not known."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def number(self, value: object) -> int:
        return self._numbers.setdefault(printable(_text(value))[:MAX_TEXT], len(self._numbers))

    @property
    def all(self) -> list[str]:
        return list(self._numbers)


def markup(analysis: Analysis) -> str:
    """Return the chapter: what the script fills, and the data. Without scripts it says why it is empty."""
    data = json.dumps(data_of(analysis), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&":  # the text of an element, in which nothing may end it
        data = data.replace(character, f"\\u{ord(character):04x}")
    return (
        '<p class="note" id="compare-note">This chapter needs scripts; the tables above have the same numbers.</p>'
        '<div id="compare-tools" class="tools" hidden><label>A <select id="compare-a"></select></label> '
        '<label>B <select id="compare-b"></select></label> <button type="button">Swap</button></div>\n'
        f'<div id="compare-result" aria-live="polite"></div>\n<template id="compare-data">{data}</template>'
    )


def data_of(analysis: Analysis) -> dict[str, Any]:
    """Return what the script compares. `fields`: title and chapter of each value of a cell, then of a run; `cells` and `runs` hold
    numbers of texts, but for the results, which are numbers, and `common`, the number of a list of such numbers."""
    texts, common = _Texts(), dict[tuple[int, ...], int]()
    sources = [source.label for source in analysis.sources]
    cells = list(analysis.cells)
    places = {(cell.source, cell.cell_id): place for place, cell in enumerate(cells)}
    keys = [flat(cell.cell.to_json()) for cell in cells]
    configuration = [name for name in dict.fromkeys(name for own in keys for name in own) if name != "cell_id"]
    columns = (*NUMBERS, *OWN_TEXTS, *COMMON_TEXTS)
    runs = analysis.frame.select(
        "source", "run_id", "cell_id", END.alias("end_word"), MEASURED.alias("measured"), *columns, *marks_as_columns()
    ).head(MAX_RUNS)  # fmt: skip
    found: dict[str, Any] = {
        "configuration": [printable(name) for name in configuration],
        "numbers": [title for title, _ in NUMBERS.values()],
        "ratios": [NUMBERS[name][0] for name in RATIOS],
        "origin": [name.replace("_", " ") for name in (*OWN_TEXTS, *COMMON_TEXTS)],
        "sources": [printable(label) for label in sources],
        "cells": [
            {
                "key": cell_anchor(analysis, cell.source, cell.cell_id),
                "name": cell_label(analysis, cell),
                "source": sources.index(cell.source),
                "values": [texts.number(own.get(name)) for name in configuration],
                "rate": _estimate(cell.rate_per_s),
                "step": _estimate(cell.step_s, 1e3),
                "measured": [cell.num_measured, cell.num_runs],
            }
            for cell, own in zip(cells, keys, strict=True)
        ],
        "runs": [
            {
                "name": printable(row["run_id"]),
                "cell": places[row["source"], row["cell_id"]],
                "end": texts.number(row["end_word"]),
                "marks": texts.number(", ".join(mark for mark in RUN_MARKS if row[mark])),
                "numbers": [
                    _number(row[name], factor) if row["measured"] or name not in MEASURED_ONLY else None
                    for name, (_, factor) in NUMBERS.items()
                ],
                "own": [texts.number(row[name]) for name in OWN_TEXTS],
                "common": common.setdefault(tuple([texts.number(row[name]) for name in COMMON_TEXTS]), len(common)),
            }
            for row in runs.iter_rows(named=True)
        ],
    }
    add_curves(analysis, found["runs"], {key: place for place, key in enumerate(runs.select("source", "run_id").iter_rows())})
    return found | {"common": list(common), "texts": texts.all}


def add_curves(
    analysis: Analysis, runs: Sequence[dict[str, Any]], places: Mapping[tuple[Any, ...], int], room: int = MAX_CURVE_BYTES
) -> None:
    """Add the curves of as many runs as there is room for, in bytes. `places`: of each run by its source and name."""
    left = room
    for key, curves in curves_of(analysis):
        left -= len(json.dumps(curves, separators=(",", ":")))
        if left < 0:
            return
        if key in places:
            runs[places[key]]["curves"] = curves


def _estimate(estimate: Estimate | None, factor: float = 1.0) -> list[Any] | None:
    """Return text, value, and the ends of the interval."""
    if estimate is None:
        return None
    scaled = estimate.scaled(factor)
    return [estimate_text(scaled), *(_number(value) for value in (scaled.value, scaled.low, scaled.high))]


def _number(value: float | None, factor: float = 1.0) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value * factor:.{PRECISION}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _text(value: object) -> str:
    """Return a value as text; of an object its keys that have a value."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {text}" for key, inner in value.items() if (text := _text(inner)))
    return "" if value is None or value == [] else plain_text(value)
