# A dataset: list the source once, one job per shard, then the manifest. Runs depend on dataset.json alone. Times of files say nothing: a
# dataset is its specification, and storage may have been copied without them.


rule dataset_plan:
    output:
        f"{DATASETS}/.build/{{dataset}}/plan.json",
    log:
        f"{DATASETS}/.build/{{dataset}}/logs/plan.log",
    priority: GRAPH.data_priority
    params:
        name=GRAPH.name_of,
        spec=GRAPH.spec_of,
    message:
        "dataset {params.name}: list its source, once"
    shell:
        f"{BUILD} plan --name {{params.name}} --spec {{params.spec:q}} {BUILD_DIR} > {{log:q}} 2>&1"


rule dataset_shard:
    input:
        ancient(rules.dataset_plan.output),
    output:
        f"{DATASETS}/.build/{{dataset}}/shard-{{shard}}.json",
    log:
        f"{DATASETS}/.build/{{dataset}}/logs/shard-{{shard}}.log",
    priority: GRAPH.data_priority
    threads: GRAPH.shard_threads(workflow.resource_settings.cores)
    resources:
        # A small job of its own where each run is one, on a node that others use too; else nothing.
        nodes=SHARD_JOB.get("nodes"),
        runtime=SHARD_JOB.get("runtime"),
        cores=SHARD_JOB.get("cores"),
        memory_mb=SHARD_JOB.get("memory_mb"),
        whole_nodes=SHARD_JOB.get("whole_nodes"),
        queue=SHARD_JOB.get("queue"),
        account=SHARD_JOB.get("account"),
        qos=SHARD_JOB.get("qos"),
        constraint=SHARD_JOB.get("constraint"),
        parallel_environment=SHARD_JOB.get("parallel_environment"),
        directives=SHARD_JOB.get("directives"),
    params:
        description=GRAPH.description_of_shard,
    message:
        "dataset {wildcards.dataset}: {params.description}"
    shell:
        f"{BUILD} shard --index {{wildcards.shard}} {BUILD_DIR} > {{log:q}} 2>&1"


rule dataset:
    input:
        ancient(GRAPH.receipts_of),
    output:
        f"{DATASETS}/.build/{{dataset}}/dataset.json",
    log:
        f"{DATASETS}/.build/{{dataset}}/logs/dataset.log",
    priority: GRAPH.data_priority
    message:
        "dataset {wildcards.dataset}: put the shards together, write the manifest with all hashes"
    shell:
        f"{BUILD} finish {BUILD_DIR} --datasets-dir {quote(DATASETS)} > {{log:q}} 2>&1"


# Inside of one job for the whole study: on all its nodes at once, before the runs, which would each read storage otherwise.
rule stage:
    input:
        ancient(rules.dataset.output),
    output:
        f"{RESULTS}/staged/{{job}}/{{dataset}}.json",
    log:
        f"{RESULTS}/logs/stage-{{job}}-{{dataset}}.log",
    priority: GRAPH.data_priority
    resources:
        nodes=GRAPH.mode.nodes,  # all of the job: no run stands beside it
    message:
        "dataset {wildcards.dataset}: stage storage -> the local disks of all nodes of the job, read once"
    shell:
        f"{PY} workflow.run.supervisor.stage_all_nodes {OF_STUDY} --dataset {{wildcards.dataset}} --output {{output:q}} 2> {{log:q}}"
