"""Endings of runs in containers on a real scheduler, and what is left after them: `python -m tests.endings`."""
