"""The node's cache: published datasets, who uses them, what may go, and results that still wait for storage."""
