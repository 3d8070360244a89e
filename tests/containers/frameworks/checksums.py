"""What a program should tell as the checksum of its parameters, computed from the file that it wrote."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors.numpy import load_file

RUNNING = ("running_mean", "running_var")


def checksum_of_file(path: Path) -> str:
    """All but the running statistics, in the order of their names."""
    arrays = sorted(load_file(path).items())
    return hashlib.sha256(b"".join(array.astype("<f4").tobytes() for name, array in arrays if not name.endswith(RUNNING))).hexdigest()
