"""Ask for machines, learn what was granted, and start a program on each node."""
