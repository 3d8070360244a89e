"""Take results that other tools measured into a table of their own, for `slipway import`."""
