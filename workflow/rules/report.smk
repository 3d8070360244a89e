# Records -> one row per run -> tables, plots, page. Commands get the directory, never the list of records: argument lists overflow.


rule collect:
    input:
        GRAPH.records,
        ancient(GRAPH.receipts),
        GRAPH.outdated,
    output:
        f"{RESULTS}/records.parquet",
    log:
        f"{RESULTS}/logs/collect.log",
    message:
        "report: records of all runs -> records.parquet, one row per run"
    shell:
        f"{PY} workflow.report {OF_STUDY} collect > {{log:q}} 2>&1"


rule tables:
    input:
        rules.collect.output,
    output:
        report(GRAPH.html_tables, category="Tables"),
        GRAPH.other_tables,
    log:
        f"{RESULTS}/logs/tables.log",
    message:
        "report: records.parquet -> tables, with speed-up and efficiency"
    shell:
        f"{PY} workflow.report {OF_STUDY} tables > {{log:q}} 2>&1"


rule plots:
    input:
        rules.collect.output,
    output:
        report(GRAPH.plots, category="Plots"),
        GRAPH.plot_specs,
    log:
        f"{RESULTS}/logs/plots.log",
    message:
        "report: records.parquet -> plots"
    shell:
        f"{PY} workflow.report {OF_STUDY} plots > {{log:q}} 2>&1"


rule page:
    input:
        rules.collect.output,
        rules.plots.output,
    output:
        report(f"{RESULTS}/report.html", category="Report"),
    log:
        f"{RESULTS}/logs/page.log",
    message:
        "report: records and plots -> report.html"
    shell:
        f"{PY} workflow.report {OF_STUDY} page > {{log:q}} 2>&1"
