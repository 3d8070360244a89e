# Records -> one row per run -> tables, plots, page. Commands get the directory, never the list of records: argument lists overflow.


rule collect:
    input:
        GRAPH.records,
        GRAPH.receipts,
    output:
        f"{RESULTS}/records.parquet",
    log:
        f"{RESULTS}/logs/collect.log",
    params:
        study=GRAPH.digest,
    shell:
        f"{REPORT} collect > {{log:q}} 2>&1"


rule tables:
    input:
        rules.collect.output,
    output:
        report(GRAPH.html_tables, category="Tables"),
        GRAPH.other_tables,
    log:
        f"{RESULTS}/logs/tables.log",
    shell:
        f"{REPORT} tables > {{log:q}} 2>&1"


rule plots:
    input:
        rules.collect.output,
    output:
        report(GRAPH.plots, category="Plots"),
        GRAPH.plot_specs,
    log:
        f"{RESULTS}/logs/plots.log",
    shell:
        f"{REPORT} plots > {{log:q}} 2>&1"


rule page:
    input:
        rules.collect.output,
        rules.plots.output,
    output:
        report(f"{RESULTS}/report.html", category="Report"),
    log:
        f"{RESULTS}/logs/page.log",
    shell:
        f"{REPORT} page > {{log:q}} 2>&1"
