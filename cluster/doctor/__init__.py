"""Checks of `slipway doctor` that concern machines: scheduler, launcher, network, GPUs, limits. Judging is pure; asking is beside it."""
