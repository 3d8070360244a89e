"""Where the commands of PBS are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

CONFIGURATION: Final = "/etc/pbs.conf"


def command(name: str) -> str:
    """The path of a command of PBS: in jobs it need not be on PATH, but then pbs.conf says where it is."""
    if shutil.which(name):
        return name
    try:
        lines = Path(os.environ.get("PBS_CONF_FILE", CONFIGURATION)).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return name
    prefix = next((line.partition("=")[2].strip() for line in lines if line.startswith("PBS_EXEC=")), None)
    return f"{prefix}/bin/{name}" if prefix else name
