"""The parts of program.py. Imports MXNet, numpy and slipway_program, nothing else of Slipway."""
