"""The parts of program.py. Imports Caffe, mpi4py, numpy and slipway_program, nothing else of Slipway."""
