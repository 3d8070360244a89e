"""Random faults in a running study on a real Slurm: `python -m tests.slurm.campaign`."""
