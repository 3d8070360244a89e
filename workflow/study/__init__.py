"""Read the study file, and make checked cells and runs of it."""
