"""Slurm: what we ask of its commands, and how their answers are read. The scheduler itself is `cluster/schedulers/slurm.py`."""
