# A dataset: list the source once, one job per shard, then the manifest. Runs depend on dataset.json alone.


rule dataset_plan:
    output:
        f"{DATASETS}/.build/{{dataset}}/plan.json",
    log:
        f"{DATASETS}/.build/{{dataset}}/logs/plan.log",
    priority: GRAPH.data_priority
    params:
        spec=GRAPH.spec_of,
    shell:
        "{PY} data_prep.build plan {params.spec:q} > {log} 2>&1"


rule dataset_shard:
    input:
        rules.dataset_plan.output,
    output:
        f"{DATASETS}/.build/{{dataset}}/shard-{{shard}}.json",
    log:
        f"{DATASETS}/.build/{{dataset}}/logs/shard-{{shard}}.log",
    priority: GRAPH.data_priority
    shell:
        "{PY} data_prep.build shard --index {wildcards.shard} > {log} 2>&1"


rule dataset:
    input:
        GRAPH.receipts_of,
    output:
        f"{DATASETS}/.build/{{dataset}}/dataset.json",
    log:
        f"{DATASETS}/.build/{{dataset}}/logs/dataset.log",
    priority: GRAPH.data_priority
    shell:
        "{PY} data_prep.build finish > {log} 2>&1"
