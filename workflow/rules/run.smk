# One run = one job = one allocation = one supervisor. It stages the dataset on its nodes, trains, collects the result, pushes it to storage
# and releases the nodes. These steps are the supervisor's own (workflow/run/supervisor), so that they share nodes, ports and clock.


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
        # What the job asks of the scheduler; what the site file does not state is left out. Without a scheduler a run asks for nothing.
        **GRAPH.run_asks_for(
            "nodes",  # of the cell
            "runtime",  # minutes: walltime of the study, deadline_margin of the site, one minute to start
            "cores",  # of each node
            "memory_mb",  # of each node; 0: all of it
            "gpus",  # of each node
            "whole_nodes",  # 1, unless the site says share_nodes
            "queue",  # of the site, and so on
            "account",
            "qos",
            "constraint",
            "parallel_environment",
            "directives",
        ),
    params:
        words=GRAPH.words_of,
        stage=GRAPH.stage_words_of,
        train=GRAPH.train_words_of,
        asks=GRAPH.asks_of,
    message:
        f"run {{params.words}}: stage {{params.stage}}; {{params.train}}; push -> {RESULTS}/runs{{params.asks}}"
    shell:
        f"{RUN} --run {{wildcards.run}} --log {{log:q}} 2>> {{log:q}}"


# Where runs are containers: once per study, on the login node, what its images are; archived on storage, from which nodes load them.
rule image:
    output:
        f"{RESULTS}/images-{{images}}.json",
    log:
        f"{RESULTS}/logs/images-{{images}}.log",
    priority: GRAPH.data_priority
    message:
        "images: pin what their names mean, archive them -> storage, from which every node loads them"
    shell:
        f"{IMAGE} --output {{output:q}} 2> {{log:q}}"
