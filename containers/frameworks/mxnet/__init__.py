"""MXNet as a framework of Slipway. Nothing imports this folder: its program is started by path."""
