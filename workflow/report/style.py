"""Colours and the one style sheet. Pages name it by its hash, so that no other style, and nothing from elsewhere, has any effect."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from string import Template
from typing import Final

INK: Final = "#1f2328"
MUTED: Final = "#57606a"
GRID: Final = "#dfe3e8"
IDEAL: Final = "#8c959f"
# Told apart by people who see colours otherwise, readable on white and on nearly black; shapes say the same a second time.
SERIES: Final = ("#0f6cbd", "#d9730d", "#11875d", "#b4469b", "#c4a000", "#2aa3a3", "#8250df", "#cf4444", "#6b7f1e", "#8a6552")
STEPS: Final = {
    "assign": "#a3a9b2",
    "stage": "#2aa3a3",
    "train": "#0f6cbd",
    "result": "#c4a000",
    "push": "#d9730d",
    "release": "#b4469b",
}

SHEET: Final = Template(Path(__file__).with_name("page.css").read_text("utf-8"))
STYLE: Final = SHEET.substitute(ink=INK, muted=MUTED, grid=GRID)

STYLE_SHA256: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
