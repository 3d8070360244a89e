"""Find the files of this installation, in a checkout or a wheel, and the default directory of a user's files.

A checkout has Snakefile, profiles and config beside the packages. A wheel carries the same files, in the same order, in
`workflow/installed` (setup.py), and nothing is ever written there: what a user owns goes where the platform keeps such things, unless the
checkout is theirs.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from base.process import CODE_ROOT

_PACKAGED: Final = CODE_ROOT / "workflow" / "installed"
FROM_CHECKOUT: Final = not _PACKAGED.is_dir()
FILES: Final = CODE_ROOT if FROM_CHECKOUT else _PACKAGED
SNAKEFILE: Final = FILES / "Snakefile"
PROFILES: Final = FILES / "profiles"
CONFIG: Final = FILES / "config"
SCHEMAS: Final = CONFIG / "schemas"
TEMPLATES: Final = CONFIG / "templates"

STORAGE: Final = "storage"
"""The directory of datasets, images and results, beside a study whose site names no other."""
NAME: Final = "slipway"
"""The name of our directories below the platform's."""


def own_checkout(root: Path = CODE_ROOT) -> Path | None:
    """Return the checkout that this program runs from, or None if this user may not write in it, as in one of a group."""
    kept = root / ".slipway"
    return root if FROM_CHECKOUT and os.access(kept if kept.exists() else root, os.W_OK) else None


def default_storage(folder: Path | None = None) -> Path:
    """Return the storage of the built-in site `local`: `storage` in the folder of a study, where this user may write.

    For other folders, and without a study, it is a directory of the user's own. So it is where another account has made `storage`, since
    that account could change all results in it; a group shares a storage by a site file that says `shared: group`.
    """
    from platformdirs import user_data_path

    if folder is not None and _is_usable(folder / STORAGE):
        return folder / STORAGE
    checkout = own_checkout()
    return user_data_path(NAME) / STORAGE if checkout is None else checkout / ".slipway" / STORAGE


def _is_usable(storage: Path) -> bool:
    if not os.access(storage if storage.exists() else storage.parent, os.W_OK):
        return False
    trusted = (0, os.geteuid(), storage.parent.stat().st_uid)  # whoever owns the folder could change the study too
    return not os.path.lexists(storage) or os.lstat(storage).st_uid in trusted


def default_cache() -> Path:
    """Return the cache of the built-in site `local`."""
    from platformdirs import user_cache_path

    checkout = own_checkout()
    return user_cache_path(NAME) if checkout is None else checkout / ".slipway" / "cache"


def own_sites() -> Path:
    """Return the directory for new site files of this user."""
    from platformdirs import user_config_path

    checkout = own_checkout()
    return user_config_path(NAME) / "sites" if checkout is None else checkout / "config" / "sites"


def sites_directories() -> tuple[Path, ...]:
    """Return the directories in which a site is looked up by its name: this user's, those of the group's installation, our example."""
    from platformdirs import user_config_path

    group = () if FROM_CHECKOUT else (Path(sys.prefix, "etc", NAME, "sites"),)
    return tuple(dict.fromkeys((own_sites(), user_config_path(NAME) / "sites", *group, CONFIG / "sites")))


def site_files(directories: Callable[[], Sequence[Path]] = sites_directories) -> dict[str, Path]:
    """Map the names of sites to their files. The nearest directory of sites wins."""
    return {file.stem: file for directory in reversed(directories()) for file in directory.glob("*.yaml") if file.is_file()}
