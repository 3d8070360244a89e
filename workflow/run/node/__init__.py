"""Execute the supervisor's commands on one node: the node program."""
