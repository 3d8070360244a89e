"""What is neon's own of the program: the network and the trainer."""
