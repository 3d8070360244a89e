"""Build a dataset from a specification in three steps: plan, one job per shard, finish. Each step resumes where a killed one stopped."""
