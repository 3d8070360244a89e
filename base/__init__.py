"""Hold what every package needs. It imports the standard library and msgspec only."""

from typing import Final

VERSION: Final = "0.9.0"
"""The version of Slipway; pyproject.toml takes it from here."""
