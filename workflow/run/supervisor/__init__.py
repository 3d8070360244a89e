"""Supervise a run: take it through its steps, and own everything that it starts."""
