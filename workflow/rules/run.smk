# One run = one job = one allocation = one supervisor, which stages, trains, collects, pushes and releases.


rule stage_train_push:
    input:
        ancient(GRAPH.dataset_of),
        ancient(GRAPH.staged),
        ancient(GRAPH.images),
        GRAPH.retry_marks,
    output:
        f"{RESULTS}/runs/{{run}}/record.json",
    log:
        f"{RESULTS}/logs/{{run}}.log",
    priority: GRAPH.priority_of
    threads: GRAPH.run_threads(workflow.resource_settings.cores)
    resources:
        **GRAPH.run_resources,
    params:
        attempt=GRAPH.attempt_of,
    shell:
        f"{RUN} --run {{wildcards.run}} --result-number {{params.attempt}} 2> {{log:q}}"


# Where runs are containers: once per study, on the login node, what its images are; archived on storage, from which nodes load them.
rule image:
    output:
        f"{RESULTS}/images-{{images}}.json",
    log:
        f"{RESULTS}/logs/images-{{images}}.log",
    priority: GRAPH.data_priority
    shell:
        f"{IMAGE} --output {{output:q}} 2> {{log:q}}"


# With retry=failed a failed run waits for its mark, which is new. The attempt number alone makes Snakemake repeat a run only while it
# remembers the number of the last time: not in a fresh clone, and not after .snakemake was deleted.
rule retry:
    output:
        temp(touch(f"{RESULTS}/retry/{{run}}")),
    log:
        f"{RESULTS}/logs/retry-{{run}}.log",
