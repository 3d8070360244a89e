"""Write and read leases, which keep datasets in use from eviction.

Each user has a small file that is void when its process or job is gone.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base.errors import LeaseError
from base.jsonfile import canonical_json
from base.publish import publish, remove_leftover
from data_prep.cache.layout import Cache, dataset_name
from data_prep.cache.lock import Lock, describe, is_alive
from data_prep.cache.stored import json_object


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A lease on a dataset. `id` is `<dataset>/<token>`; `holder` is the description of its user."""

    id: str
    dataset: str
    holder: Mapping[str, Any]

    def __str__(self) -> str:
        return describe(self.holder)


def release(cache_dir: Path, lease_id: str) -> None:
    """Give a lease back. A lease that is gone already is fine: whoever saw its holder dead dropped it."""
    dataset, _, token = lease_id.partition("/")
    if not token.isalnum():
        raise LeaseError(f"{lease_id!r} is not an id of a lease: expected <dataset>/<token>")
    (Path(cache_dir) / "leases" / dataset_name(Path(dataset)) / f"{token}.json").unlink(missing_ok=True)


def release_all(cache_dir: Path, holder: Mapping[str, Any], dataset: str | None = None) -> None:
    """Give back what `holder` holds of a dataset, or of anything (None), also what it was never told of: a stager that is killed may have
    written a lease and not said so. Those of the dead go with them."""
    cache = Cache(root=Path(cache_dir), shared=False)
    names = [path.name for path in cache.leases.glob("*")] if dataset is None else [dataset_name(Path(dataset))]
    for lease in (lease for name in names for lease in live_leases(cache, name)):
        if dict(lease.holder) == dict(holder):
            release(cache.root, lease.id)


def write_lease(cache: Cache, name: str, holder: Mapping[str, Any]) -> str:
    """Write a lease. The caller holds the lock of the dataset."""
    token = secrets.token_hex(8)
    directory = cache.make_directory(cache.leases / name)
    path = directory / f"{token}.json"
    publish(path, canonical_json(dict(holder)), cache.file_mode)
    path.chmod(cache.file_mode)
    return f"{name}/{token}"


def live_leases(cache: Cache, name: str) -> list[Lease]:
    """List the leases whose holder lives, or may live, and remove the others where possible. An unreadable lease counts as live, since only
    its holder knows its content."""
    found = []
    for path in sorted((cache.leases / name).glob("[0-9a-f]*.json")):
        if not path.exists():
            continue
        holder = json_object(path)
        if is_alive(holder):
            found.append(Lease(id=f"{name}/{path.stem}", dataset=name, holder=holder))
        else:
            remove_leftover(path)
    return found


def refuse_if_removing(lock: Lock, name: str) -> None:
    """Refuse to go on while a frozen process removes the dataset. It may rename the dataset away when it continues, so it cannot be
    bypassed as a frozen stager can."""
    holder = lock.holder()
    if holder.get("what") == "remove":
        raise LeaseError(f"dataset {name} is being removed by {describe(holder)}, which does not move; end it (kill -9), then try again")
