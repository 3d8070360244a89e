"""The node program: what a run does on one node, by the supervisor's commands."""
