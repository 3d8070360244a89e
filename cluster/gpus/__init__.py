"""Find the GPUs of a node, which of them were granted to us, and who else uses them, always by UUID.

Nothing is locked here: runs exclude each other by whole nodes (workflow/run/supervisor/node_locks.py). By UUID, since
numbers mean something else to the scheduler, the driver, CUDA and the container runtime.
"""
