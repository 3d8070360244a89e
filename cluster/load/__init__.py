"""Record the load of a machine while it measures: `python -m cluster.load`. Standard library and `base` only."""
