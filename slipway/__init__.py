"""Read the results of studies in a program or a notebook, by the names that study files, records and tables have.

    import slipway

    study = slipway.Study.load("study.yaml")
    study.results()          # a row for each run
    study.cells()            # a row for each cell: its keys, rate and step with their intervals, marks
    study.table("scaling")   # a table of `slipway tables`

The tables are polars.DataFrame; `.to_pandas()` makes another library's of them. Nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from workflow.report.analysis import Analysis

__all__ = ["Study"]


@dataclass(frozen=True)
class Study:
    """The results of one study, or of several that are compared. `directories`: where they lie."""

    directories: tuple[Path, ...]

    @classmethod
    def load(cls, *places: str | Path, site: str | None = None) -> Study:
        """Find the results of a study file on a site, or take results directories; without a place those of config/study.yaml.

        Raises ConfigError for a file that is no valid study, or a file among directories, RecordError where the study was never run there.
        """
        from workflow.commands.chosen_study import results_as_they_are

        paths = [Path(place) for place in places]
        return cls(tuple(results_as_they_are(Path("config/study.yaml"), site, paths)))

    def results(self) -> pl.DataFrame:
        """Return one row for each run, failed and missing ones too, with the columns of records.parquet (docs/reference/tables.md)."""
        return self._analysis.frame

    def cells(self) -> pl.DataFrame:
        """Return one row for each cell.

        `source`, `cell_id` and the keys of the study file (nested ones with dots), `runs`, `measured_runs`, the geometric means over the
        measured runs `rate_per_s` (samples or tokens, `unit`, of all processes together) and `step_p50_s` with the ends of their 95 %
        intervals, null where nothing is known, and `marks`, what a reader has to know of the numbers (docs/reference/tables.md).
        """
        import polars as pl

        from workflow.study.cell import SIZES

        analysis, rows = self._analysis, []
        kinds: dict[str, Any] = {name + end: pl.Float64 for name in ("rate_per_s", "step_p50_s") for end in ("", "_low", "_high")}
        kinds["marks"] = pl.List(pl.String)
        for cell in analysis.cells:
            row = {"source": cell.source, "cell_id": cell.cell_id, **analysis.flat[cell.source, cell.cell_id]}
            row |= {key: cell.size(key) for key in SIZES}
            row |= {"runs": cell.num_runs, "measured_runs": cell.num_measured, "unit": cell.unit}
            for name, found in (("rate_per_s", cell.rate_per_s), ("step_p50_s", cell.step_s)):
                row |= {name: found and found.value, f"{name}_low": found and found.low, f"{name}_high": found and found.high}
            rows.append({**row, "marks": sorted(cell.marks)})
        return pl.DataFrame(rows, infer_schema_length=None, strict=False, schema_overrides=kinds)

    def table(self, name: str) -> pl.DataFrame:
        """Return a table of `slipway tables`, with the columns of its CSV; `marks` has `column: mark` for each mark.

        Raises ConfigError with the valid names.
        """
        import polars as pl

        from base.errors import ConfigError
        from base.humanize import choices
        from workflow.report.study_tables import TABLES

        if name not in TABLES:
            raise ConfigError(f"{name!r} is no table; {choices(name, TABLES)}")
        table = TABLES[name](self._analysis)
        marks = [
            [f"{key.key}: {mark}" for key, value in zip(table.columns, row, strict=True) for mark in sorted(value.marks)]
            for row in table.rows
        ]
        return pl.DataFrame(
            {**{column.key: column.raws for column in table.columns}, "marks": marks},
            strict=False,
            schema_overrides={"marks": pl.List(pl.String)},
        )

    @cached_property
    def _analysis(self) -> Analysis:
        from workflow.commands.chosen_study import report_outputs

        report_outputs()  # says how to install the libraries of tables where they are missing
        from workflow.report.analysis import analyse
        from workflow.report.collect import collect

        return analyse(collect(self.directories))
