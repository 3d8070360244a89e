"""How Theano is set, which compiles each network when it starts, and, in place of slipway_program, the program of the frameworks that are
built on it: `python -m slipway_historic_program.theano_flags FOLDER MODULE:NAME`."""

import json
import os
import shutil
import sys
import zlib
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

from slipway_program.__main__ import import_trainer
from slipway_program.parameters import starting_parameters
from slipway_program.rank import main

DIRECTORY = "theano-%s"
"""The directory to which a rank compiles, in the directory that it writes to. Each rank has one of its own, because a shared one is locked
while a rank compiles, and the others would look for its end every few seconds."""


def set_flags() -> None:
    """Set the variables that Theano reads when it is imported, in place of the user's own. Raises RuntimeError: no compiler."""
    directory = DIRECTORY % os.environ["RANK"]
    if compiled_before().is_dir():
        shutil.copytree(str(compiled_before()), directory)
    compile_to(directory)


def leaving_no_files(make_trainer: Callable[..., Any]) -> Callable[..., Any]:
    """Remove the directory of a trainer that was made: Theano has loaded by then what it has compiled."""

    def make(*arguments: Any) -> Any:
        try:
            return make_trainer(*arguments)
        finally:
            shutil.rmtree(DIRECTORY % os.environ["RANK"])

    return make


def compile_to(directory: str) -> None:
    """Set the same, for compiling to this directory; a comma in it would end the value. Raises RuntimeError: no compiler."""
    if shutil.which("g++") is None:
        raise RuntimeError(
            "Theano compiles each network with g++, which is not on PATH here: install it on the compute nodes (Debian: g++)"
        )
    flags = {
        "device": "cpu",
        "floatX": "float32",
        "compiledir": directory,
        "blas.ldflags": "-lopenblas",  # without it, Theano 0.8 is 8 times slower
        "openmp": str(int(os.environ.get("OMP_NUM_THREADS", "1")) > 1),
    }
    os.environ["THEANO_FLAGS"] = ",".join("%s=%s" % pair for pair in flags.items())
    os.environ["THEANORC"] = os.devnull


def compile_ahead(module: str, trainer: str) -> None:
    """Compile the network whose layer list is on standard input, for `compiled_before`."""
    place = compiled_before()
    os.chdir(str(place.parent))
    compile_to(place.name)
    layers = json.load(sys.stdin)
    optimizer = {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0}
    dataset = SimpleNamespace(mean=[0.0], std=[1.0])
    make_trainer = getattr(import_module(module), trainer)
    make_trainer({"model_layers": layers, "mode": "train", "optimizer": optimizer}, dataset, starting_parameters(layers, 0))


def compiled_before() -> Path:
    """Return what was compiled when the environment was made, half a minute's work: for processors of the same kind, since Theano compiles
    for the one that it runs on. Each rank takes a copy along."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        kind = next((line for line in file if line.startswith(("flags", "Features"))), "")
    return Path(sys.prefix, "theano-%08x" % zlib.crc32(kind.encode()))


def load() -> Any:
    """Import here, and not above: Theano compiles a part of itself when it is imported, and its failure must be an event too."""
    from slipway_program.driver import run

    set_flags()
    return partial(run, make_trainer=leaving_no_files(import_trainer()))


if __name__ == "__main__":
    main(load)
