"""Checks of `slipway doctor` that concern bytes: network storage and the node-local cache."""
