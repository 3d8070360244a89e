"""Carry a study between a laptop and a cluster: what goes up, where it lies there, what comes down, and what the laptop keeps."""
