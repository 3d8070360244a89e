# One run = one job = one allocation = one supervisor. It stages the dataset on its nodes, trains, collects the result, pushes it to storage
# and releases the nodes. These steps are the supervisor's own (workflow/run/supervisor), so that they share nodes, ports and clock.


# What Snakemake sees is a receipt: that the requested result is on storage. The record itself is written by the holder of the run's lease,
# and by nobody else: Snakemake deletes outputs before it starts a job, and when a job failed.
rule stage_train_push:
    input:
        ancient(GRAPH.dataset_of_runs),
        ancient(GRAPH.staged),
        ancient(GRAPH.images),
    output:
        touch(f"{RECEIPTS}/{{run}}"),
    log:
        f"{RESULTS}/logs/{{run}}.log",
    priority: GRAPH.priority_of
    threads: GRAPH.run_threads(workflow.resource_settings.cores)
    resources:
        nodes=JOB.get("nodes"),  # of the cell
        runtime=JOB.get("runtime"),  # minutes: walltime of the study, deadline_margin of the site, one minute to start
        cores=JOB.get("cores"),  # of each node
        memory_mb=JOB.get("memory_mb"),  # of each node; 0: all of it
        gpus=JOB.get("gpus"),  # of each node
        whole_nodes=JOB.get("whole_nodes"),  # 1, unless the site says share_nodes
        queue=JOB.get("queue"),  # of the site, and so on
        account=JOB.get("account"),
        qos=JOB.get("qos"),
        constraint=JOB.get("constraint"),
        parallel_environment=JOB.get("parallel_environment"),
        directives=JOB.get("directives"),
    message:
        "{GRAPH.descriptions:{wildcards.run}}"
    shell:
        f"{PY} workflow.run.supervisor {OF_STUDY}{GRAPH.images_option} --run {{wildcards.run}} --log {{log:q}} 2>> {{log:q}}"


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
        f"{PY} workflow.run.images {OF_STUDY} --output {{output:q}} 2> {{log:q}}"
