"""Find what the trace of a profiler says of the steps in it: layers, the rest of the step, copies, idle time. Pure but for the reading."""
