"""Answer what Snakemake asks of a study: which files, which resources, which runs are missing, and what is refused before the start."""
