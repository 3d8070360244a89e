from shlex import quote

from workflow.commands.snakemake_hooks import PYTHON as PY, SnakemakeHooks

HOOKS = SnakemakeHooks.of(workflow)
GRAPH = HOOKS.graph  # what the rules ask of the study
DATASETS = GRAPH.datasets_dir
RESULTS = GRAPH.results_dir
RECEIPTS = GRAPH.receipts_dir
BUILD = f"{PY} data_prep.build{GRAPH.group_option}"
BUILD_DIR = f"--build-dir {quote(DATASETS)}/.build/{{wildcards.dataset}}"
OF_STUDY = f"--results {quote(RESULTS)}"
JOB = GRAPH.run_resources  # of a run's job; empty without a scheduler
SHARD_JOB = GRAPH.shard_resources


wildcard_constraints:
    dataset=HOOKS.dataset_pattern,
    images=r"[0-9a-f]{12}",
    job=r"\d+-[0-9a-f]+",
    shard=r"\d{5}",
    run=r"[a-z0-9][a-z0-9._-]*-r\d+(\.after-[1-9]\d*)?",


onstart:
    HOOKS.start()


onsuccess:
    HOOKS.succeed()


onerror:
    HOOKS.fail()
