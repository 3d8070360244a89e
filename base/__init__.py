"""What every room needs; standard library only."""

from typing import Final

VERSION: Final = "0.1.0"
"""Of Slipway; pyproject.toml takes it from here."""
