"""The network test of an allocation: do its nodes reach each other, and how fast? Children of the node programs measure, judgement.py says
what the measurements mean."""
