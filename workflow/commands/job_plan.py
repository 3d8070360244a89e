"""What Slurm would be asked, word for word, in both ways: by the plugin's own code for a job per run, by our script for one job for all."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from cluster.schedulers.slurm.batch_script import sbatch_options
from workflow.dag.image_file import images_file
from workflow.dag.job_resources import with_all_memory
from workflow.dag.job_size import run_resources
from workflow.dag.submission import Width, plan_submission
from workflow.study.cell import Cell, Run
from workflow.study.study import Study

TOKEN: Final = "0" * 8
DEFAULT_QUEUE: Final = "<default>"
LOG: Final = ".slipway/slurm-logs/rule_stage_train_push/{run}/%j.log"
"""As profiles/slurm says, in the directory where Snakemake works."""


class Resources(dict[str, Any]):
    """As Snakemake hands them to its plugin: what is not set is not there, and each is an attribute too."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def job_of_run(study: Study, cell: Cell, run_id: str) -> str:
    """The sbatch command of `slipway run` for a run, as the plugin makes it; what is decided at the start stands in <>."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    site = study.site
    asked = with_all_memory(run_resources(cell, site, study.limits.walltime_s))
    resources = Resources({name: value for name, value in asked.items() if value is not None})
    job = SimpleNamespace(resources=resources, threads=1, is_group=lambda: False)
    params = {
        "run_uuid": "<uuid>",
        "slurm_logfile": str(study.results_dir / LOG.format(run=run_id)),
        "comment_str": f"rule_stage_train_push_wildcards_{run_id}",
        "account": f"-A {shlex.quote(site.account)}" if site.account else "",
        "partition": f"-p {shlex.quote(site.queue)}" if site.queue else f"-p {shlex.quote(DEFAULT_QUEUE)}",
        "workdir": str(study.results_dir),
    }
    settings = SimpleNamespace(requeue=True, no_requeue=False, qos=None, reservation=None)
    call = get_submit_command(job, params, settings) + set_gres_string(job)
    return f"{' '.join(shlex.quote(word) for word in shlex.split(call))} --wrap='<snakemake of this run>'"


def jobs_of_study(study: Study, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each kind of job that `slipway run` submits: how many, and the command of the first."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(str(sorted(run_resources(run.cell, study.site, study.limits.walltime_s).items(), key=str)), []).append(run)
    return [{"jobs": len(found), "sbatch": job_of_run(study, found[0].cell, found[0].run_id)} for found in kinds.values()]


def submission_of(study: Study, runs: Sequence[Run]) -> dict[str, Any]:
    """What `slipway submit` would ask and execute now; its name ends in 8 digits that are drawn then."""
    names = {run.cell.dataset for run in runs}
    images = images_file(study)
    built = (images is None or Path(images).exists()) and all((study.build_dir(name) / "dataset.json").exists() for name in names)
    job = plan_submission(study, runs, Width(), TOKEN, built=built)
    return {"sbatch": [option.replace(TOKEN, "<token>") for option in sbatch_options(job)], "executes": list(job.argv)}
