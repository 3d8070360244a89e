"""Execute jobs for Snakemake in Slipway's profiles in which each run is a job of its own. Snakemake finds it by its name and imports it at
every start, so that all else is imported when a study has jobs to submit.

One executor serves every scheduler (`cluster/schedulers/jobs.py`). What it runs in a job is the shell command of the rule: see
workflow/dag/submitting.py. Our Snakefile says by SUBMITS whose jobs these are.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecMode

if TYPE_CHECKING:
    from workflow.dag.submitting import Submissions

common_settings = CommonSettings(non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False)


class Executor(RealExecutor):  # type: ignore[misc] # its package has no types
    """The executor that submits, watches and cancels the jobs of one Snakemake process."""

    def __post_init__(self) -> None:
        self._own: Submissions | None = None

    def run_job(self, job: Any) -> None:
        """Submit the job, or find it in the queue. A refusal of the scheduler fails this job only, and Snakemake goes on."""
        from base.errors import SlipwayError
        from workflow.dag.job_plans import size_of
        from workflow.dag.submitting import log_reason

        if job.is_group() or job.rule.shellcmd is None:
            raise WorkflowError(f"rule {job.name}: the executor slipway runs rules that are one shell command, and no groups of them")
        own, wildcards = self._submissions(), "_".join(job.wildcards).replace("/", "_")
        try:
            submitted = own.earlier(job.rule.name, wildcards)
            if submitted is None:
                self.workflow.async_run(job.prepare())
                submitted = own.submit(job.rule.name, wildcards, size_of(job.resources), job.shellcmd)
        except (SlipwayError, OSError, ValueError) as error:
            for log in job.log[:1]:
                log_reason(Path(log), self._scheduler, str(error))
            self.report_job_error(SubmittedJobInfo(job), msg=str(error))
            return
        info = SubmittedJobInfo(job, external_jobid=submitted.job_id)
        self.report_job_submission(info)
        own.watch(submitted, info)

    def cancel(self) -> None:
        if self._own is not None:
            self._own.cancel()

    def shutdown(self) -> None:
        if self._own is not None:
            self._own.close()

    def _submissions(self) -> Submissions:
        """Return the submissions, made for the first job: a Snakemake with no jobs does not query the scheduler."""
        if self._own is None:
            from cluster.schedulers import jobs_of
            from workflow.dag.execution import SUBMITS
            from workflow.dag.queue_view import poll_queue
            from workflow.dag.submitting import LONGEST_S, Submissions

            self._scheduler, _, mark = os.environ.get(SUBMITS, "").partition(" ")
            if not mark:
                raise WorkflowError("the executor slipway is made for Slipway's own Snakefile, in a profile whose runs are jobs")
            jobs = jobs_of(self._scheduler)
            assert jobs is not None, "a profile whose runs are jobs, and a scheduler without"
            queue, late_s = poll_queue(self._scheduler, jobs, LONGEST_S), self.workflow.execution_settings.latency_wait
            self._own = Submissions(jobs, queue, mark, str(Path.cwd()), self._ended, late_s)
        return self._own

    def _ended(self, info: SubmittedJobInfo, why: str | None) -> None:
        if why is None:
            self.report_job_success(info)
        else:
            self._tell_log_of(info.job, why)
            self.report_job_error(info, msg=f"{why}. ", external_jobid=info.external_jobid)

    def _tell_log_of(self, job: Any, why: str) -> None:
        from workflow.dag.submitting import log_reason

        for log in job.log[:1]:
            if not os.path.exists(log):  # noqa: PTH110 - Path.exists raises where storage does not say it
                log_reason(Path(log), self._scheduler, why)

    @property
    def cores(self) -> str:
        """Return `all`: the interface requires the cores of a Snakemake inside the job, which never runs."""
        return "all"

    def get_python_executable(self) -> str:
        """Raise WorkflowError, since no Snakemake runs inside the job."""
        raise WorkflowError("the executor slipway starts no Snakemake in its jobs")

    def get_exec_mode(self) -> ExecMode:
        return ExecMode.REMOTE
