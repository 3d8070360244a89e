# One run = one job = one allocation = one supervisor, which stages, trains, collects, pushes and releases.


rule stage_train_push:
    input:
        ancient(GRAPH.dataset_of),
    output:
        f"{RESULTS}/runs/{{run}}/record.json",
    log:
        f"{RESULTS}/logs/{{run}}.log",
    priority: GRAPH.priority_of
    threads: GRAPH.run_threads(workflow.cores)
    params:
        attempt=GRAPH.attempt_of,
    shell:
        "{PY} workflow.run.supervisor --results {RESULTS:q} --run {wildcards.run} 2> {log}"
