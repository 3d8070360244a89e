"""Share between the programs of this distribution what only they need: MPI, LMDB as it is, plain files, Theano. Python 3.6 and later."""
