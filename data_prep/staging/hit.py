"""Is the dataset here already, and still what it was? Looked at on every use, cheaply; thoroughly if somebody else put it here."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from base.errors import RecordError, SlipwayError
from base.jsonfile import canonical_json, read_json
from base.publish import publish
from cluster.processes import boot_id
from data_prep.cache.layout import Cache
from data_prep.cache.lease import live_leases
from data_prep.cache.lock import Lock
from data_prep.cache.stored import check_entry, remove_entry
from data_prep.manifest import Manifest, verify_dataset

logger = logging.getLogger(__name__)


def find_hit(cache: Cache, name: str, lock: Lock) -> tuple[Manifest, str] | None:
    """Manifest and digest of the published dataset; None if there is none, also after a damaged one was removed.

    Raises StagingError when a damaged one cannot be removed, because it is somebody else's.
    """
    root = cache.datasets / name
    if not os.path.lexists(root):
        return None
    try:
        manifest, digest = check_entry(root)
        if root.lstat().st_uid != os.geteuid():
            _verify_once(cache, root, digest, lock)
        return manifest, digest
    except SlipwayError as error:
        users = "; ".join(str(lease) for lease in live_leases(cache, name)) or "nobody"
        logger.warning("%s is damaged and staged again (in use by %s): %s", root, users, error)
    lock.doing("remove")
    remove_entry(cache, root)
    lock.doing("stage")
    return None


def _verify_once(cache: Cache, root: Path, digest: str, lock: Lock) -> None:
    """Hash an entry of another user once per boot, and remember that in a file of ours. Raises DigestMismatch."""
    mark = cache.verified / f"{root.name}-{os.geteuid()}.json"
    found = {"boot_id": boot_id(), "digest": digest}
    try:
        if mark.lstat().st_uid == os.geteuid() and read_json(mark) == found:
            return
    except (OSError, RecordError):
        logger.info("%s belongs to uid %d: hashing it before its first use", root, root.lstat().st_uid)
    verify_dataset(root, lock.beat)
    publish(mark, canonical_json(found))
