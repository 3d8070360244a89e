"""Share between the programs of all frameworks: starting weights, batches, steps, events, files. Imports numpy and the reader only; Python
3.6 and later. On a program's path this package is `slipway_program`; driver.py is a run from start to end."""
