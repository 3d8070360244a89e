"""Make and read the record of a run: how it ended, and what its events say."""
