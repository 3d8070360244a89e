"""Plan studies, run them and report their results: study, run, report, commands."""
