"""Write the files of a report. Each appears whole or not at all; the same records give the same bytes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from base.errors import RecordError
from base.jsonfile import read_content
from base.publish import publish
from workflow.report.analysis import Analysis, analyse
from workflow.report.collect import collect, read_records, write_records
from workflow.report.files import PAGE_FILE, PLOT_NAMES, RECORDS_FILE
from workflow.report.formats import FORMATS
from workflow.report.study_tables import all_tables
from workflow.report.table_type import Table


def write_all(directories: Sequence[Path], out: Path) -> Analysis:
    """Write all files of the report into `out`."""
    analysis = write_collected(directories, out)
    write_tables(analysis, out)
    write_page(analysis, out, write_plots(analysis, out))
    return analysis


def write_collected(directories: Sequence[Path], out: Path) -> Analysis:
    """Write records.parquet only."""
    collection = collect(directories)
    out.mkdir(parents=True, exist_ok=True)
    write_records(collection, out)
    return analyse(collection)


def read_or_collect(directories: Sequence[Path], out: Path) -> Analysis:
    """Read records.parquet of `out`; collect if there is none, or one of another version."""
    if (out / RECORDS_FILE).exists():
        with suppress(RecordError):
            return analyse(read_records(out / RECORDS_FILE))
    return write_collected(directories, out)


def tables_of(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Yield name and text of every file of tables/."""
    for table in all_tables(analysis):
        yield from _files_of(table)


def _files_of(table: Table) -> Iterator[tuple[str, str]]:
    return ((f"tables/{table.name}.{suffix}", to_text(table)) for suffix, to_text in FORMATS.items())


def write_tables(analysis: Analysis, out: Path) -> None:
    """Write tables/<name>.<csv, md, tex, html>."""
    _write(tables_of(analysis), out / "tables")


def write_table(table: Table, out: Path) -> None:
    """Write the files of one table."""
    _write(_files_of(table), out / "tables")


def write_plots(analysis: Analysis, out: Path) -> dict[str, str]:
    """Write plots/<name>.svg and .vl.json. Return the SVGs by name."""
    from workflow.report.plots import PLOTS, to_json, to_svg

    specs = {name: PLOTS[name](analysis) for name in PLOT_NAMES}
    svgs = {name: to_svg(spec, name) for name, spec in specs.items()}
    _write(((f"plots/{name}.vl.json", to_json(spec)) for name, spec in specs.items()), out / "plots")
    _write(((f"plots/{name}.svg", svg) for name, svg in svgs.items()), out / "plots")
    return svgs


def _write(files: Iterable[tuple[str, str]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files:
        publish(folder.parent / name, content.encode())


def read_plots(out: Path) -> dict[str, str] | None:
    """Read the SVGs in plots/, if all are there and none is older than records.parquet."""
    paths = {name: out / "plots" / f"{name}.svg" for name in PLOT_NAMES}
    try:
        made = (out / RECORDS_FILE).stat().st_mtime_ns
        if all(path.stat().st_mtime_ns >= made for path in paths.values()):
            return {name: read_content(path).decode() for name, path in paths.items()}
    except (FileNotFoundError, RecordError, UnicodeDecodeError):
        return None
    return None


def write_page(analysis: Analysis, out: Path, svgs: dict[str, str]) -> Path:
    """Write report.html."""
    from workflow.report.page import page

    publish(out / PAGE_FILE, page(analysis, svgs, out).encode())
    return out / PAGE_FILE
