"""One run inside its allocation: supervisor, node programs, lease, outcome, record."""
