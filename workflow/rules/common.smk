import atexit
import contextlib
import gc
import os
import shlex
import sys

from base.account import account_environ
from base.errors import SlipwayError
from base.logs import private_umask
from cluster.processes import age_s
from workflow.commands.ending import Ending
from workflow.commands.chosen_study import tell_site
from workflow.run.record.continuation import planned
from workflow.run.storage.results import SUFFIX as ASKED_SUFFIX
from workflow.dag.refusals import load_graph
from workflow.dag.execution import mode_of

# The graph of a large study is millions of small objects that live to the end: looking for garbage among them is a quarter of
# `snakemake -n` of 10,000 runs (benchmarks/dry_run.py). The collector is back before the first job starts.
gc.disable()

os.environ.update(account_environ(os.environ))
try:
    GRAPH = load_graph(
        workflow.config_settings.config,
        workflow.configfiles,
        workflow.basedir,
        os.environ,
        mode_of(
            workflow.resource_settings.overwrite_resource_scopes,
            workflow.global_resources,
            os.environ,
        ),
        tell_site,
    )
except SlipwayError as error:
    # Not by Snakemake, which would exit with 1 and name the line of this file: the same sentence and exit code as `slipway plan`.
    sys.stderr.write(f"snakemake: {error}\n")
    sys.exit(error.exit_code)

private_umask(group=GRAPH.shared_by_group)
with contextlib.suppress(OSError):
    # Snakemake's own directory in /tmp, in which it puts nothing where storage is shared: a job that is killed would leave it on its node.
    workflow.snakemake_tmp_dir.rmdir()
os.environ.update(GRAPH.environment(os.environ))
os.environ.update(planned(os.environ, age_s(os.getpid())))
ENDING = Ending(GRAPH)
atexit.register(
    ENDING.at_exit, workflow
)  # where there was nothing to do, Snakemake calls none of the hooks below
DATASETS = GRAPH.datasets_dir
RESULTS = GRAPH.results_dir
# Commands are exec'd: a signal to the job reaches our program, and a run sees at once when Snakemake is gone.
PY = f"exec {shlex.quote(sys.executable)} -P -m"  # -P: see base.packages
BUILD = f"{PY} data_prep.build{GRAPH.group_option}"
BUILD_DIR = f"--build-dir {shlex.quote(DATASETS)}/.build/{{wildcards.dataset}}"
RUN = f"{PY} workflow.run.supervisor --results {shlex.quote(RESULTS)}{GRAPH.images_option}"
IMAGE = f"{PY} workflow.run.images.pin --results {shlex.quote(RESULTS)}"
STAGE = f"{PY} workflow.run.supervisor.stage_all_nodes --results {shlex.quote(RESULTS)}"
REPORT = f"{PY} workflow.report --results {shlex.quote(RESULTS)}"


wildcard_constraints:
    dataset=r"[a-z0-9][a-z0-9._-]*-[0-9a-f]{12}",
    images=r"[0-9a-f]{12}",
    job=r"\d+-[0-9a-f]+",
    made=r"\d+",
    shard=r"\d{5}",
    run=rf"[a-z0-9][a-z0-9._-]*-r\d+{ASKED_SUFFIX}",


onstart:
    gc.enable()
    # No limit of jobs per second, which is 100 by default: for it each job that ends adds a thread that wakes the scheduler every second.
    limiter = workflow.scheduler.job_rate_limiter
    if limiter is not None and (limiter.max_jobs, limiter.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None
    GRAPH.start(workflow.executor_plugin.name)


onsuccess:
    ENDING.tell()


onerror:
    ENDING.after_failure()
