"""Build a dataset in a process of its own: `python -m tests.data_prep.build.building SPEC NAME DATASETS JOBS`.

It prints {"done", "total"} as it goes, and last the dataset.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec

ROOT = Path(__file__).parents[3]


def started(spec: Mapping[str, object], name: str, datasets: Path, jobs: int = 2, **options: Any) -> subprocess.Popen[str]:
    """The process, whose output can be read."""
    argv = [sys.executable, "-m", "tests.data_prep.build.building", json.dumps(spec), name, str(datasets), str(jobs)]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def show(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    given, named, place, num_jobs = sys.argv[1:]
    made = parse_spec(json.loads(given), Path.cwd())
    show(vars(build_dataset(made, named, Path(place), int(num_jobs), lambda done, total: show({"done": done, "total": total}))))
