"""The parts of program.py. Imports DyNet, numpy and slipway_program, nothing else of Slipway."""
