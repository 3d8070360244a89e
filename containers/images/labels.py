"""Labels of images that we build."""

from __future__ import annotations

from typing import Final

SLIPWAY: Final = "slipway"
FRAMEWORK: Final = "slipway.framework"
