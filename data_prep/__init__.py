"""Datasets: built from sources, staged to nodes, read by programs; results pushed back."""
