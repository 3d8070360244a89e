"""The parts of program.py. Imports Keras, TensorFlow, numpy and slipway_program, nothing else of Slipway."""
