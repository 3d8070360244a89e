"""Check network storage and the node-local cache for `slipway doctor`."""
