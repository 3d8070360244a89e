"""Frameworks of the literature that are no longer developed: each folder is one, as docs/framework-contract.md of Slipway says."""
