"""Frameworks of the literature that are no longer developed: each folder is one, as docs/developers/framework-contract.md says."""
