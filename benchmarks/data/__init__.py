"""Compare the data path with its peers: building, reading and staging a dataset, each peer in an environment of its own."""
