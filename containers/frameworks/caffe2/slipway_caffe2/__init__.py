"""The parts of program.py. Imports Caffe2, mpi4py, numpy and slipway_program, nothing else of Slipway."""
