"""Run the checks of `slipway doctor` in order, each within a time limit, here and on every node of the allocation; draft site files."""
