"""Compare two studies cell by cell, and say what differs in what their runs were made of: `slipway compare`."""
