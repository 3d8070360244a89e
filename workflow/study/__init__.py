"""From the study file to checked cells and runs."""
