"""Define a site: where storage and cache are, what runs the jobs, what a node has. Pure values; reading the file is in site_file.py."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from base.errors import ConfigError
from base.typed import Check, Count, Seconds, SomeSeconds, read_as
from cluster import detection, installation

# Define whom `notify` of a site or study file tells that a study has ended, or that a run of it has failed.
#
# dag/notify.py sends the notifications.


When = Literal["end", "failure"]


@dataclass(frozen=True, kw_only=True)
class Notify:
    """The people to tell, and when.

    `webhook_env`, `webhook_file`: where the webhook's URL is, which is a secret and in no file of a study.
    """

    mail: tuple[str, ...] = ()
    webhook_env: str | None = None
    webhook_file: Path | None = None
    when: tuple[When, ...] = ("end",)


Device = Annotated[str, Check("cpu or cuda", lambda value: value in ("cpu", "cuda"))]
MAX_PRICE: Final = 1e9
DEADLINE_MARGIN_S: Final = 120.0
KEYS_OF_FILE: Final = {"memory_per_node_bytes": "memory_per_node", "walltime_s": "walltime", "deadline_margin_s": "deadline_margin"}
"""Fields of a site whose key in the site file is another: there values have units."""


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The node-local directory for datasets and images, how much of it is ours (None: what the file system has), and how long a dataset
    that is in it may be hashed at each use (None: the stager's default)."""

    path: Path
    max_bytes: Count | None = None
    check_s: Seconds | None = None
    place: str | None = None
    """The place of `path` in the site file, as `file:line`, if variables are left in it, which have their values on the nodes."""


@dataclass(frozen=True, kw_only=True)
class StorageLimit:
    """The limit of network storage: bytes per second in all, and readers at once (None: no limit; 16 nodes of a run read an image's
    archive)."""

    bytes_per_s: Count | None = None
    readers: Count | None = None


Price = Annotated[float, Check("a price of 0 or more", lambda value: 0 <= value <= MAX_PRICE), msgspec.Meta(ge=0, le=MAX_PRICE)]


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What hours and energy cost, in `currency`; None: not stated. An hour of a GPU, of a node, and a kilowatt hour."""

    currency: Annotated[str, msgspec.Meta(max_length=16)]
    gpu_hour: Price | None = None
    node_hour: Price | None = None
    kwh: Price | None = None


@dataclass(frozen=True, kw_only=True)
class Site:
    """One cluster, or this machine. Paths are absolute; None means not stated."""

    name: str
    storage: Path
    cache: Cache
    engine: str = "bare"
    scheduler: str = "local"
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    parallel_environment: str | None = None
    directives: tuple[str, ...] = ()
    device: Device = "cpu"
    gpus_per_node: Count | None = None
    cpus_per_node: Count | None = None
    memory_per_node_bytes: Count | None = None
    walltime_s: SomeSeconds | None = None
    deadline_margin_s: Seconds = DEADLINE_MARGIN_S
    share_nodes: bool = False
    setup: tuple[str, ...] = ()
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[tuple[str, str, bool], ...] = ()
    """(source, target, whether it may be written) of what all containers get, by target."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of all training processes, by name."""
    registry_credentials: Path | None = None
    network_interface: str | None = None
    storage_limit: StorageLimit | None = None
    foreign_gpu: str = "record"
    gpu_health: str = "record"
    shared: str = "user"
    notify: Notify | None = None
    prices: Prices | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the site as JSON-able values; paths as text, tuples as lists."""
        value: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self, enc_hook=str))
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Site":
        """Read the site in a study.json. Raises RecordError when it is not one."""
        return read_as(cls, dict(value), "the site in study.json")


def local_site(has_gpu: bool, folder: Path | None = None) -> Site:
    """Return the built-in site `local`: this machine, with the results beside the study, which lies in `folder`.

    Raises ConfigError.
    """
    storage = installation.default_storage(folder)
    if braces := why_no_storage(storage):
        raise ConfigError(f"the storage of the site 'local': {braces}")
    return Site(name="local", storage=storage, cache=Cache(path=installation.default_cache()), device="cuda" if has_gpu else "cpu")


def why_no_storage(path: Path) -> str:
    """Return why Snakemake can have no files at a path; "" where it can."""
    if not set("{}") & set(str(path)):
        return ""
    return f"{str(path)!r} holds a brace, which Snakemake takes for the beginning of a wildcard; choose another path, or link to it"


def storage_limit(site: Site) -> StorageLimit:
    """Return the limit of storage, also where the site names none."""
    return site.storage_limit or StorageLimit()


def device_of(device: str, site: Site) -> str:
    """Return `cuda` or `cpu`: a cell's `device`, or the site's where the cell says `site`."""
    return site.device if device == "site" else device


def refuse_other_scheduler(site: Site, environ: Mapping[str, str]) -> None:
    """Raise ConfigError when the job we are in was started by another scheduler than the site's, `local` included."""
    found = detection.scheduler_of(environ)
    if found is not None and found != site.scheduler:
        variables = ", ".join(f"{name}={environ[name]}" for name in detection.SIGNS[found].variables)
        raise ConfigError(
            f"the site {site.name!r} says scheduler: {site.scheduler}, but this process runs inside an allocation of {found} "
            f"({variables}); "
            f"choose a site with scheduler: {found} (--config site=NAME for snakemake, --site NAME for slipway, or $SLIPWAY_SITE), "
            f"or leave the allocation"
        )
