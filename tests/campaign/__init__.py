"""Random faults in a running study on a real scheduler: `python -m tests.campaign`."""
