"""The parts of program.py. Imports JAX, numpy and slipway_program, nothing else of Slipway."""
