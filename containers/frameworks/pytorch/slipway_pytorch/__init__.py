"""The parts of program.py; training.py is the run from start to end. Imports torch, numpy and the reader, nothing else of Slipway."""
