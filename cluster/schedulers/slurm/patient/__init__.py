"""Slurm's commands as Snakemake's slurm plugin gets them: patient with a silent controller, sparing with questions.

The plugin forgets its jobs when squeue fails or when it does not learn MinJobAge, takes an sbatch that timed out for refused, and asks the
accounting database what the site file says already (docs/slurm.md). Directories of stand-ins in front of PATH change what it hears; the
plugin keeps submitting, polling and cancelling.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cluster.schedulers.jobs import Submitter

HERE: Final = Path(__file__).parent
IN_MAIN: Final = str(HERE / "bin")
IN_JOBS: Final = str(HERE / "bin-jobs")
"""scontrol, which keeps each Snakemake inside of a job from asking the controller for its configuration, and srun, which finds its
cluster although Snakemake's jobstep takes SLURM_CONF away."""
STATE: Final = "SLIPWAY_PATIENT_STATE"
PYTHON: Final = "SLIPWAY_PATIENT_PYTHON"
MAIN_PID: Final = "SLIPWAY_PATIENT_PID"
ACCOUNT: Final = "SLIPWAY_PATIENT_ACCOUNT"
STUDY: Final = "SLIPWAY_PATIENT_STUDY"
RUN_LOGS: Final = "SLIPWAY_PATIENT_RUN_LOGS"
BUILDS: Final = "SLIPWAY_PATIENT_BUILDS"
ONLY_MAIN: Final = (MAIN_PID, ACCOUNT, STUDY, RUN_LOGS, BUILDS)
SLURM_CONF: Final = "SLIPWAY_SLURM_CONF"
SAFE_PATH: Final = "PYTHONSAFEPATH"
"""What `-P` says to one Python, said to all."""


def patient_environ(environ: Mapping[str, str], submitter: Submitter) -> dict[str, str]:
    """Pure: what the Snakemake that submits adds to its environment."""
    return {
        "PATH": ":".join([IN_MAIN, IN_JOBS, plain_path(environ.get("PATH", ""))]),
        STATE: str(submitter.state),
        PYTHON: sys.executable,
        MAIN_PID: str(submitter.pid),
        ACCOUNT: submitter.account or "",
        STUDY: submitter.mark,
        RUN_LOGS: submitter.run_logs,
        BUILDS: submitter.builds,
        **({SLURM_CONF: environ["SLURM_CONF"]} if environ.get("SLURM_CONF") else {}),
    }


def plain_path(path: str, *, keep: str = "") -> str:
    """Pure: PATH without our directories, but for `keep`."""
    return ":".join(entry for entry in path.split(":") if entry not in {IN_MAIN, IN_JOBS} - {keep})


def job_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: what a job may inherit: of the stand-ins only those for jobs. The Snakemake in it is called without `-P`, in the user's
    directory; the environments of programs that train are lists of what they get, and this is in none."""
    kept = {key: value for key, value in environ.items() if key not in ONLY_MAIN}
    return {**kept, "PATH": plain_path(environ.get("PATH", ""), keep=IN_JOBS), SAFE_PATH: "1"}
