"""Do the nodes of an allocation reach each other, and how fast? Children of the node programs test it, judgement.py says what it means."""
