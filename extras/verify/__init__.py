"""Verify that storage holds what was measured: `slipway verify`."""
