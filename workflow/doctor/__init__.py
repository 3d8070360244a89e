"""`slipway doctor`: the checks in order, each within a time limit, here and on every node of the allocation; drafts of site files."""
