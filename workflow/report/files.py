"""Name the files of a report, below a study's results directory, and switch garbage collection off while it is made. Light: the Snakefile
asks."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

RECORDS_FILE: Final = "records.parquet"
PAGE_FILE: Final = "report.html"
EVIDENCE: Final = "scaling-evidence"
"""The page of `slipway tables scaling-evidence`, which is made when it is asked for."""
_FIRST: Final = "speedup times failures budget hours utilisation bounds cost storage parts layers prediction time-to-accuracy"
_OTHERS: Final = "precision dlbench frameworks survey framework-facts model-facts convolutions scaling"
TABLE_NAMES: Final = (*_FIRST.split(), *_OTHERS.split())
TABLE_SUFFIXES: Final = ("csv", "md", "tex", "html")
PLOT_NAMES: Final = ("overview", "throughput", "efficiency", "budget", "step_parts", "layers", "step_time", "loss", "accuracy", "timeline")
PLOT_SUFFIXES: Final = ("svg", "vl.json")
TABLE_FILES: Final = tuple(f"tables/{name}.{suffix}" for name in TABLE_NAMES for suffix in TABLE_SUFFIXES)
PLOT_FILES: Final = tuple(f"plots/{name}.{suffix}" for name in PLOT_NAMES for suffix in PLOT_SUFFIXES)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no reference cycles meanwhile: there are none to find, and looking takes half of the time of 10^5 runs."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
