"""The parts of program.py. Imports Lasagne, Theano, numpy and slipway_program, nothing else of Slipway; Python 3.6."""
