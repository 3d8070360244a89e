"""One rank of a training or inference run in Caffe2. In and out: docs/developers/framework-contract.md. It writes events, parameters
and the exit code. The run itself is slipway_program/driver.py; what is Caffe2's is in slipway_caffe2."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Import here, and not above: Caffe2 takes a second to import, and its failure must be an event too."""
    # Caffe2's glog brings libunwind, which ends the process at every exception of C++ where it comes before the library of the compiler.
    ctypes.CDLL("libgcc_s.so.1", ctypes.RTLD_GLOBAL)
    from slipway_caffe2.trainer import Caffe2Trainer  # type: ignore[import-not-found]
    from slipway_program.driver import run

    return partial(run, make_trainer=Caffe2Trainer)


if __name__ == "__main__":
    main(load)
