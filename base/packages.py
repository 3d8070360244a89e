"""Where our packages lie, and the environment that makes every Python we start find them, whatever directory it is started in.

Such a Python is started with `-P`: without it `python -m` looks into the working directory first, which is the user's, and runs or reads
what lies there by the name of a module of ours or of the standard library.
"""

from __future__ import annotations

import os
import site
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOMS: Final = Path(__file__).resolve().parents[1]
"""The directory that base, cluster, containers, data_prep, workflow and extras lie in: a checkout, or site-packages."""


def rooms_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the environment of a Python of ours gains, so that it finds the packages that we run from: a checkout goes before all
    else. A wheel adds nothing, since its interpreter finds it, and site-packages in front would hide modules of the standard library."""
    if ROOMS in {Path(found).resolve() for found in (*site.getsitepackages(), site.getusersitepackages())}:
        return {}
    before = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(ROOMS)]
    return {"PYTHONPATH": os.pathsep.join([str(ROOMS), *before])}
