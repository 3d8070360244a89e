"""The parts of program.py. Imports Chainer, numpy and slipway_program, nothing else of Slipway."""
