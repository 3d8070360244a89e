"""Keep a run on network storage: its lease, its attempt's directory, its checkpoints, its record."""
