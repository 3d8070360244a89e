"""Test the network of an allocation: do its nodes reach each other, and how fast? Children of the node programs measure, rates.py says
what the measurements mean."""
