"""The parts of program.py. Imports Keras, its backend, numpy and slipway_program, nothing else of Slipway."""
