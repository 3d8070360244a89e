"""What people see while something runs: where each run of a study stands, how far long work is; on a terminal, or as lines in a file."""
