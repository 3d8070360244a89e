"""What Snakemake is told of the ends of jobs by its executor."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from snakemake_executor_plugin_slipway import Executor


class Told(Executor):
    """Of no Snakemake."""

    def __init__(self) -> None:
        self._scheduler = "slurm"
        self.failed: list[str] = []

    def report_job_error(self, _info: Any, msg: str | None = None, **_more: Any) -> None:
        self.failed.append(str(msg))


def test_a_job_has_failed_although_nobody_can_look_at_its_log(tmp_path: Path) -> None:
    """Network storage may fail between two looks. Without the word Snakemake would wait for this job for ever, and for all others."""
    told = Told()
    no_name = str(tmp_path / ("a" * 300))  # a path that cannot be looked at, for root too
    told._ended(SimpleNamespace(job=SimpleNamespace(log=[no_name]), external_jobid="7"), "job 7 has failed with exit code 9")
    assert told.failed == ["job 7 has failed with exit code 9. "]
