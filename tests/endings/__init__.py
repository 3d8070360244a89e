"""Endings of runs in containers on a real Slurm, and what is left after them: `python -m tests.endings`."""
