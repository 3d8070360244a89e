"""Check the numbers of a table against each other, for `slipway lint-table`."""
