"""What is known of a run: how it ended, what its events say, its record as it is written and as it is read."""
