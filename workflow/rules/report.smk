# Records -> one table of all runs -> tables, plots, page. Directories are named, never the list of records: argument lists overflow.


rule collect:
    input:
        GRAPH.records,
    output:
        f"{RESULTS}/records.parquet",
    log:
        f"{RESULTS}/logs/collect.log",
    params:
        study=GRAPH.digest,
    shell:
        "{PY} workflow.report collect --results {RESULTS:q} > {log} 2>&1"
