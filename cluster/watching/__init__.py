"""The machine while it measures: `python -m cluster.watching` writes down what others take of it. Standard library and `base` only."""
