"""Run the console script `slipway`: one module per command; main.py names them and imports each only when it is called.

What people see meanwhile is in watching/.
"""
