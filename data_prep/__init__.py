"""Build datasets from sources, stage them on nodes, read them in programs, and push results back."""
