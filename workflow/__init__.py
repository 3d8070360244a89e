"""What runs, in which order, and what came of it: study, run, report, commands."""
