"""Say where the time of a training step goes: `slipway profile`."""
