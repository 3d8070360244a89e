"""Compute once, from the collected rows, everything that tables, plots and page show."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from base.logs import printable
from workflow.report.cells import (
    END,
    CellResult,
    Shape,
    cells_of,
    constant,
    flat_keys,
    legend_keys,
    varying,
)
from workflow.report.collect import Collection, Source
from workflow.report.same_network import marked
from workflow.report.speedup import Comparison, Line, compare_to_baseline, has_several_baselines, lines_of, regrouped
from workflow.report.table_type import NONE
from workflow.run.record.parquet_columns import MISSING, PREVENTED, TIMES_ONLY, UNREADABLE
from workflow.study.cell import UNITS


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How the runs ended; `ok` were measured. `left_out`: directories of runs that the study no longer asks for."""

    ends: Mapping[str, int]
    left_out: int

    @property
    def num_runs(self) -> int:
        return sum(self.ends.values())

    @property
    def ok(self) -> int:
        return self.ends.get("ok", 0) + self.ends.get(TIMES_ONLY, 0)

    @property
    def missing(self) -> int:
        return self.ends.get(MISSING, 0)

    @property
    def failed_rows(self) -> int:
        """Count results without a measurement, prevented attempts and unreadable records; not runs that have not begun."""
        return self.num_runs - self.ok - self.missing

    def closing_line(self) -> str:
        """Describe how the runs ended, such as `17 of 18 runs ok, 1 failed (1 oom)`, and what else there is to know."""
        text = f"{self.ok} of {self.num_runs} runs ok"
        text += f" ({self.ends[TIMES_ONLY]} with {TIMES_ONLY})" if self.ends.get(TIMES_ONLY) else ""
        for name, statuses in {"failed": self._failed(), "prevented": PREVENTED, UNREADABLE: (UNREADABLE,), MISSING: (MISSING,)}.items():
            counts = {status: self.ends[status] for status in statuses if self.ends.get(status)}
            if counts:
                detail = "" if name in counts else f" ({', '.join(f'{count} {status}' for status, count in counts.items())})"
                text += f", {sum(counts.values())} {name}{detail}"
        return text + (f"; {self.left_out} left out: the study no longer asks for them" if self.left_out else "")

    def _failed(self) -> tuple[str, ...]:
        return tuple(status for status in self.ends if status not in ("ok", TIMES_ONLY, MISSING, UNREADABLE, *PREVENTED))


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Everything that tables, plots and page are made of."""

    frame: pl.DataFrame
    sources: tuple[Source, ...]
    cells: tuple[CellResult, ...]
    comparisons: tuple[Comparison, ...]
    summary: Summary

    @cached_property
    def primary(self) -> tuple[Comparison, ...]:
        """Return one comparison per cell, which tables and plots show."""
        return tuple(comparison for comparison in self.comparisons if comparison.primary)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """Return the model, and every other key of a series that differs inside the study."""
        return tuple(dict.fromkeys(("model", *varying(self.cells))))

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(sorted({cell.shape for cell in self.cells}))

    @cached_property
    def shared(self) -> str:
        hardware = sorted(set().union(*(cell.distinct["hardware"] for cell in self.cells)))
        keys = constant(self.cells)
        where = f" on {hardware[0]}" if len(hardware) == 1 else ""
        return printable(f"All rows: {keys}{where}") if keys or where else ""

    @cached_property
    def cell_names(self) -> tuple[str, ...]:
        """Return the model, and what else tells all cells apart, measured or not."""
        return tuple(dict.fromkeys(("model", *legend_keys(self.cells))))

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """Return the model, and what else tells the lines of the plots apart. Cells that were not measured do not count."""
        return tuple(dict.fromkeys(("model", *legend_keys([cell for cell in self.cells if cell.num_measured]))))

    @property
    def processes(self) -> str:
        return {"GPU": "GPUs", "process": "processes"}[self.process_name]

    @cached_property
    def lines(self) -> dict[Line, tuple[Comparison, ...]]:
        """Return what is drawn as one line and read as one row, with its baseline."""
        return lines_of(self.comparisons)

    @cached_property
    def crossed(self) -> bool:
        """Return True if a line has several baselines: then each number has to say which one it is measured against."""
        return any(has_several_baselines(line) for line in self.lines.values())

    @cached_property
    def flat(self) -> dict[tuple[str, str], dict[str, object]]:
        """Return the flat keys of each source and cell, nested ones with dots."""
        return {(cell.source, cell.cell_id): flat_keys(cell.cell) for cell in self.cells}

    @cached_property
    def key_texts(self) -> dict[tuple[str, str], list[str]]:
        """Return the first values of the rows of each cell."""
        return {
            cell: [NONE if flat.get(name) is None else printable(str(flat[name])) for name in self.key_names]
            for cell, flat in self.flat.items()
        }

    @property
    def study(self) -> str:
        return " and ".join(dict.fromkeys(source.study for source in self.sources))

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Return what rates count: `samples`, `tokens`, or both, since each program has its own."""
        return tuple(unit for unit in UNITS if any(cell.unit == unit for cell in self.cells)) or UNITS[:1]

    @property
    def rate_words(self) -> str:
        """Return `samples/s`, `tokens/s`, or `samples/s or tokens/s`."""
        return " or ".join(f"{unit}/s" for unit in self.units)

    @cached_property
    def process_name(self) -> str:
        """Return `GPUs` if every measured run had them, else `processes`."""
        devices = set().union(*(cell.distinct["device"] for cell in self.cells)) if self.cells else set()
        return "GPU" if devices == {"cuda"} else "process"


def analyse(collection: Collection) -> Analysis:
    """Compute cells, comparisons and counts."""
    cells = marked(regrouped(cells_of(collection.frame), collection.sources[0].baseline))
    ends = Counter(collection.frame.select(END.alias("end"))["end"].to_list())
    return Analysis(
        frame=collection.frame,
        sources=collection.sources,
        cells=cells,
        comparisons=compare_to_baseline(cells, collection.sources[0].baseline),
        summary=Summary(
            ends=dict(sorted(ends.items())),
            left_out=sum(source.left_out for source in collection.sources),
        ),
    )
