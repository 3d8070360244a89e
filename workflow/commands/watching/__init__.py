"""Show people what happens while something runs: where each run of a study is, how far long work is; on a terminal, or as lines in a
file."""
