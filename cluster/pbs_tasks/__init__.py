"""Start programs on the nodes of a PBS job by pbs_tmrsh. It runs often, and so imports little."""
