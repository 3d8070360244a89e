"""Record the load of a machine while it measures: `python -m cluster.watching`. Standard library and `base` only."""
