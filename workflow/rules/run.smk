# One run = one job = one allocation = one supervisor, which stages, trains, collects, pushes and releases.


# What Snakemake is told of is a receipt: that the result which was asked for is on storage. The record itself is written by the one who
# holds the run's lease, and by nobody else: Snakemake deletes outputs before it starts a job, and when a job failed.
rule stage_train_push:
    input:
        ancient(GRAPH.dataset_of),
        ancient(GRAPH.staged),
        ancient(GRAPH.images),
    output:
        touch(f"{GRAPH.receipts_dir}/{{run}}"),
    log:
        f"{RESULTS}/logs/{{run}}.log",
    priority: GRAPH.priority_of
    threads: GRAPH.run_threads(workflow.resource_settings.cores)
    resources:
        **GRAPH.run_resources,
    params:
        words=GRAPH.words_of,
    message:
        "run {params.words}: stage, train, push"
    shell:
        f"{RUN} --run {{wildcards.run}} 2> {{log:q}}"


# Where runs are containers: once per study, on the login node, what its images are; archived on storage, from which nodes load them.
rule image:
    output:
        f"{RESULTS}/images-{{images}}.json",
    log:
        f"{RESULTS}/logs/images-{{images}}.log",
    priority: GRAPH.data_priority
    message:
        "images: pinned and archived on storage"
    shell:
        f"{IMAGE} --output {{output:q}} 2> {{log:q}}"
