"""The parts of program.py. Imports Paddle, numpy and slipway_program, nothing else of Slipway."""
