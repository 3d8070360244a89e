"""GPUs are UUIDs: what this process sees of a node's GPUs, which of them it was granted, who else uses them, and whether a container sees
the same. schedulers.md, section 1: numbers mean something else to the scheduler, the driver, CUDA and the container runtime."""
