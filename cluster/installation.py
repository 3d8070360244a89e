"""Where this installation's own files lie, and where a user's files go who says nothing: the one place that tells a checkout from a wheel.

A checkout has Snakefile, profiles and config beside the rooms. A wheel carries the same files, in the same order, in `workflow/installed`
(setup.py), and nothing is ever written there: what a user owns goes where the platform keeps such things, unless the checkout is theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from base.packages import ROOMS

_CARRIED: Final = ROOMS / "workflow" / "installed"
FROM_CHECKOUT: Final = not _CARRIED.is_dir()
FILES: Final = ROOMS if FROM_CHECKOUT else _CARRIED
SNAKEFILE: Final = FILES / "Snakefile"
PROFILES: Final = FILES / "profiles"
CONFIG: Final = FILES / "config"
SCHEMAS: Final = CONFIG / "schemas"
TEMPLATES: Final = CONFIG / "templates"

NAME: Final = "slipway"
"""Of our directories below the platform's."""
DISTRIBUTION: Final = "slipway-cluster"
"""What pip calls us; `slipway` on the Python package index is another project."""


def own_checkout(rooms: Path = ROOMS) -> Path | None:
    """The checkout we run from, where this user may write in it: several may use one that belongs to a group."""
    kept = rooms / ".slipway"
    return rooms if FROM_CHECKOUT and os.access(kept if kept.exists() else rooms, os.W_OK) else None


def default_storage() -> Path:
    """Of the built-in site `local`."""
    from platformdirs import user_data_path

    checkout = own_checkout()
    return user_data_path(NAME) / "storage" if checkout is None else checkout / ".slipway" / "storage"


def default_cache() -> Path:
    """Of the built-in site `local`."""
    from platformdirs import user_cache_path

    checkout = own_checkout()
    return user_cache_path(NAME) if checkout is None else checkout / ".slipway" / "cache"


def own_sites() -> Path:
    """Where a new site file of this user goes."""
    from platformdirs import user_config_path

    checkout = own_checkout()
    return user_config_path(NAME) / "sites" if checkout is None else checkout / "config" / "sites"


def sites_directories() -> tuple[Path, ...]:
    """Where a site is looked up by its name, the nearest first: this user's, those of the group whose installation it is, our example."""
    from platformdirs import user_config_path

    group = () if FROM_CHECKOUT else (Path(sys.prefix, "etc", NAME, "sites"),)
    return tuple(dict.fromkeys((own_sites(), user_config_path(NAME) / "sites", *group, CONFIG / "sites")))


def site_files(directories: Callable[[], Sequence[Path]] = sites_directories) -> dict[str, Path]:
    """The sites that can be chosen by name, each as the nearest directory of sites has it."""
    return {file.stem: file for directory in reversed(directories()) for file in directory.glob("*.yaml") if file.is_file()}
