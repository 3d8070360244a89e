"""A controller of Slurm that is away in the middle of a study: `python -m tests.slurm.patience`."""
