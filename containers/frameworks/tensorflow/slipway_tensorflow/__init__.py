"""The parts of program.py. Imports TensorFlow, numpy and slipway_program, nothing else of Slipway."""
