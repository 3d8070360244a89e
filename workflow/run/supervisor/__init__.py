"""The supervisor: it takes a run through its steps, and owns everything that the run starts."""
