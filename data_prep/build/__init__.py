"""From a specification to a published dataset: plan -> one job per shard -> finish. Each step resumes where a killed one stopped."""
