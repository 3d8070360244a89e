"""Run programs on an allocated node: the specification of a container, the engines that start it, frameworks and models."""
