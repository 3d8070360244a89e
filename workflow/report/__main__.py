"""Make the parts of a report for the rules: `python -m workflow.report collect|tables|plots|page|all --results DIR [--results DIR ...]
[--out DIR]`.

`collect` writes records.parquet; `tables`, `plots` and `page` read it (and collect first if it is not there); `all` does everything.
DIR is a study's results directory; the first one is the study shown, the others are its runs on other clusters or days. `--out` is the
first DIR if not given. Exit 0 also when rows failed: they are rows. A SlipwayError ends with its message and exit code.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from base.errors import SlipwayError, StorageError
from base.logs import configure
from cluster.storage_guard import guarded
from workflow.report.files import without_garbage_collection

logger = logging.getLogger("workflow.report")


def main(argv: Sequence[str] | None = None) -> int:
    """Make what the words name; return the exit code."""
    arguments = _parser().parse_args(argv)
    configure("report")
    try:
        with without_garbage_collection():
            _run(arguments.what, arguments.results, arguments.out or arguments.results[0])
    except SlipwayError as error:
        logger.error("%s", error)
        return error.exit_code
    except OSError as error:
        logger.error("%s: %s", error.filename, error.strerror)
        return StorageError.exit_code
    return 0


def _run(what: str, results: Sequence[Path], out: Path) -> None:
    from workflow.report import outputs

    anew = what in ("collect", "all")
    analysis = (outputs.write_collected if anew else outputs.read_or_collect)(results, out)
    if what in ("tables", "all"):
        outputs.write_tables(analysis, out)
    if what in ("plots", "all"):
        svgs = outputs.write_plots(analysis, out)
    if what in ("page", "all"):
        svgs = svgs if what == "all" else outputs.read_plots(out) or outputs.write_plots(analysis, out)
        outputs.write_page(analysis, out, svgs)
    logger.info("%s: %s", analysis.study, analysis.summary.closing_line())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workflow.report", description="Tables, plots and one page from the records of a study."
    )
    parser.add_argument("what", choices=("collect", "tables", "plots", "page", "all"))
    parser.add_argument(
        "--results", action="append", type=Path, required=True, metavar="DIR", help="results of a study; may be given several times"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: the first --results)")
    return parser


if __name__ == "__main__":
    sys.exit(guarded(main))
