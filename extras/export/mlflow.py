"""Write MLflow's own directory of runs by its library: metrics per step, the cell as parameters, the record's words as tags."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from base.errors import UnsupportedRequest
from extras.export.runs import ExportedRun, parameters, results, tags
from extras.export.tensorboard import scalars
from workflow.study.cell import unit_of

NEXT: Final = "MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {to}/<study>/mlruns"
OFFLINE: Final = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""Newer versions ask for a database otherwise, where a directory is what can be copied; and nothing is sent."""
MISSING: Final = f"the library of MLflow is not installed here: {sys.executable} -m pip install 'mlflow-skinny>=3'"
MAX_METRICS: Final = 1000
"""Metrics of one call; parameters and tags are 100."""


def export(runs: Sequence[ExportedRun], to: Path) -> int:
    """Write <to>/mlruns, one experiment with a run for each, as Format has it."""
    os.environ.update(OFFLINE)
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise UnsupportedRequest(MISSING) from error
    place = to.absolute() / "mlruns"
    shutil.rmtree(place, ignore_errors=True)
    client = MlflowClient(tracking_uri=place.as_uri())
    experiment = client.create_experiment(to.name)
    for run in runs:
        _write(client, experiment, run)
    return sum(path.is_file() for path in place.rglob("*"))


def _write(client: Any, experiment: str, run: ExportedRun) -> None:
    from mlflow.entities import Metric, Param, RunTag

    begun, ended = (_milliseconds(run.record["time"][name]) for name in ("start", "end"))
    found = client.create_run(experiment, start_time=begun, run_name=run.run_id).info.run_id
    told = scalars(run.events(), unit_of(run.cell), begun / 1000)
    metrics = [Metric(one.tag, one.value, int(one.time * 1000), one.step) for one in told]
    metrics += [Metric(name, value, ended, 0) for name, value in results(run.record).items()]
    for part in _parts(metrics, MAX_METRICS):
        client.log_batch(found, metrics=part)
    for part in _parts([Param(name, value) for name, value in parameters(run.cell).items()], 100):
        client.log_batch(found, params=part)
    client.log_batch(found, tags=[RunTag(name, value) for name, value in tags(run.record, run.marks).items()])
    status = "FINISHED" if run.record["status"] == "ok" else "KILLED" if run.record["kind"] == "prevented" else "FAILED"
    client.set_terminated(found, status, end_time=ended)


def _milliseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + most] for start in range(0, len(items), most))
