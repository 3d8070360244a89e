"""Programs on the nodes of a PBS job, by pbs_tmrsh: what is started there, often, and so imports little."""
