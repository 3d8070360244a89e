"""The console script `slipway`: one module per command; main.py names them and imports each only when it is called; what people see
meanwhile is in watching/."""
