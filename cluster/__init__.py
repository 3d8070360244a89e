"""Machines: what is asked for, what was granted, how a program gets onto each node."""
