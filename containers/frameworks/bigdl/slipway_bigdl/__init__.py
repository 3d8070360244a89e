"""What is BigDL's own of the program: Spark, the network, the training."""
