"""A study of programs of one's own, each on two nodes by another launcher: torchrun, mpirun, and ranks with sidecars."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.workflow.run.test_mpirun import TRAIN as MPI_TRAIN
from tests.workflow.run.test_sidecars import SERVE
from tests.workflow.run.test_sidecars import TRAIN as SERVED_TRAIN
from tests.workflow.run.world import ROOT

STUDY: Final = """
study: {name}
datasets:
  digits: {{source: sklearn-digits}}
programs:
  classifier:
    folder: ddp{classifier}
    command: ["{{python}}", "{{folder}}/train.py", "--data", "{{data}}", "--width", "64", "--batch-size", "{{batch_size}}"]
  mpi:
    folder: mpi{mpi}
    launcher: mpirun
    command: ["{{python}}", "{{folder}}/train.py", work]
  served:
    folder: served{served}
    launcher: ranks
    command: ["{{python}}", "{{folder}}/train.py", "{{head}}", "{{port.echo}}", needs]
    sidecars:
      - {{name: server, where: head, command: ["{{python}}", "{{folder}}/serve.py", answer, "{{head}}", "{{port.echo}}"]}}
      - {{name: waiter, where: each, command: ["{{python}}", "{{folder}}/serve.py", wait]}}
base: {{batch_size: 2, nodes: 2, steps: {{warmup: 2, measured: 10}}, repeats: 1}}
include:
  - {{program: classifier, dataset: digits, batch_size: 32}}
  - {{program: mpi}}
  - {{program: served}}
limits: {{walltime: 10m, init: 180s}}
"""
PROGRAMS: Final = ("classifier", "mpi", "served")


def missing_here() -> str | None:
    """Why it cannot run here without containers, in words."""
    return None if shutil.which("mpirun") else "Open MPI is not here (openmpi-bin)"


def study(name: str, images: Mapping[str, str] | None = None) -> str:
    """`images`: of each program; None: it runs without containers."""
    return STUDY.format(name=name, **{program: f"\n    image: {images[program]}" if images else "" for program in PROGRAMS})


def write_folders(directory: Path) -> None:
    """Beside the study."""
    shutil.copytree(ROOT / "examples" / "ddp" / "train", directory / "ddp")
    for folder, files in (("mpi", {"train.py": MPI_TRAIN}), ("served", {"train.py": SERVED_TRAIN, "serve.py": SERVE})):
        (directory / folder).mkdir()
        for name, text in files.items():
            (directory / folder / name).write_text(text)


def check(records: Sequence[Mapping[str, Any]]) -> None:
    """Each has trained on two nodes, the ranks of mpirun as one world, those with sidecars after these had answered both."""
    found = {record["cell"]["program"]["name"]: record for record in records}
    assert {name: (record["status"], record["status_reason"]) for name, record in found.items()} == dict.fromkeys(PROGRAMS, ("ok", None))
    assert {name: (len(record["nodes"]), record["world_size"]) for name, record in found.items()} == dict.fromkeys(PROGRAMS, (2, 2))
    assert {name: record["performance"]["num_measured_steps"] for name, record in found.items()} == dict.fromkeys(PROGRAMS, 10)
    assert found["mpi"]["training"]["losses"][0] == [0, 0 + 1]
