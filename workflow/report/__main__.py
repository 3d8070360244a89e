"""What the rules call: `python -m workflow.report collect|tables|plots|page|all|verify --results DIR [--results DIR ...] [--out DIR]`.

`collect` writes records.parquet; `tables`, `plots` and `page` read it (and collect first if it is not there); `all` does everything;
`verify` writes nothing: `slipway verify` without the tables (exit code of RecordError if something differs).
DIR is a study's results directory; the first one is the study shown, the others are its runs on other clusters or days. `--out` is the
first DIR if not given. Exit 0 also when rows failed: they are rows. A SlipwayError ends with its message and exit code.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from base.errors import RecordError, SlipwayError, StorageError
from base.logs import configure
from workflow.report.keeping import all_kept

logger = logging.getLogger("workflow.report")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    arguments = _parser().parse_args(argv)
    configure("report")
    try:
        with all_kept():
            return _run(arguments.what, arguments.results, arguments.out or arguments.results[0])
    except SlipwayError as error:
        logger.error("%s", error)
        return error.exit_code
    except OSError as error:
        logger.error("%s: %s", error.filename, error.strerror)
        return StorageError.exit_code


def _run(what: str, results: Sequence[Path], out: Path) -> int:
    from workflow.report import outputs
    from workflow.report.analysis import analyse

    if what == "verify":
        return _verify(results)
    anew = what in ("collect", "all")
    analysis = outputs.write_collected(results, out) if anew else analyse(outputs.read_or_collect(results, out))
    if what in ("tables", "all"):
        outputs.write_tables(analysis, out)
    if what in ("plots", "all"):
        svgs = outputs.write_plots(analysis, out)
    if what in ("page", "all"):
        svgs = svgs if what == "all" else outputs.read_plots(out) or outputs.write_plots(analysis, out)
        outputs.write_page(analysis, out, svgs)
    logger.info("%s: %s", analysis.study, analysis.summary.closing_line())
    return 0


def _verify(results: Sequence[Path]) -> int:
    from workflow.report.verified import Verified, summary
    from workflow.report.verify import verify_runs

    total = Verified()
    for directory in results:
        total.add(verify_runs(directory))
    for sentence in total.findings:
        logger.error("%s", sentence)
    logger.info("%s", summary(total, results))
    return 0 if total.is_whole else RecordError.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workflow.report", description="Tables, plots and one page from the records of a study."
    )
    parser.add_argument("what", choices=("collect", "tables", "plots", "page", "all", "verify"))
    parser.add_argument(
        "--results", action="append", type=Path, required=True, metavar="DIR", help="results of a study; may be given several times"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: the first --results)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
