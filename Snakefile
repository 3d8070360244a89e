# Which file comes from which; nothing else. What to run: config/study.yaml, or the one file given by --configfile.
from snakemake.utils import min_version

min_version("9.27")


container: "docker://python:3.11"  # for `snakemake --lint` only: no profile sets a software deployment method


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/run.smk"
include: "workflow/rules/report.smk"


# What is short stays where Snakemake is, where the report's libraries are installed too; runs and shards go to where the profile says.
localrules:
    all,
    dataset_plan,
    dataset,
    image,
    collect,
    tables,
    plots,
    page,


rule all:
    default_target: True
    input:
        GRAPH.receipts,
        rules.tables.output,
        rules.page.output,
    message:
        "study {GRAPH.study.name}: all runs, tables and the page -> {RESULTS}"
