"""Find the site file, and make it a Site."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, ValidationError, WithJsonSchema

from base.errors import ConfigError
from base.humanize import absolute_path, choices, expanded, parse_size, variables_of
from base.untrusted import described, why_distrusted, why_way_distrusted
from cluster.detection import of_a_job
from cluster.installation import site_files, sites_directories
from containers.engines import ENGINES, in_container
from workflow.study.explain import Fault, fault_error, validation_error
from workflow.study.loader import Document, read_document
from workflow.study.programs import Source, Target, Variable, VariableText
from workflow.study.site import DEADLINE_MARGIN_S, KEYS_OF_FILE, MAX_PRICE, Cache, Prices, Site, StorageLimit, local_site, why_no_storage
from workflow.study.value_types import ABSENT, Count, Flag, Name, NotifyKeys, Part, Seconds, TextLine, amount, wrong

SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)? ?[kKMGTP]?i?B?$"
HINTS = {
    "partition": "write queue: NAME, whatever the scheduler calls it",
    **dict.fromkeys(("study", "axes", "base", "datasets", "limits"), "it belongs in the study file, which says what to run"),
}


def _size(value: object) -> object:
    return amount(value, "a size as text with its unit, such as 500MB, 20GiB or 3TB", parse_size)


def _directive(value: object) -> object:
    """Refuse a line with its marker: it would stand behind a second one in the script, where the scheduler passes over it."""
    if isinstance(value, str) and (marked := re.fullmatch(r"#[A-Z]+ +(.+)|#\$ *(.+)", value.strip())):
        raise wrong(value, f"a directive without its marker, such as {marked[1] or marked[2]!r}")
    return value


Directive = Annotated[TextLine, AfterValidator(_directive)]
Size = Annotated[int, BeforeValidator(_size), WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN, "minLength": 1})]
Scheduler = Literal["local", "slurm", "lsf", "pbs", "sge"]
if TYPE_CHECKING:
    Engine = str
else:
    Engine = Literal[tuple(ENGINES)]


class CacheKeys(Part):
    """The node-local directory for datasets and images."""

    path: TextLine = Field(
        description="directory on a local disk of every node. It may hold [variables](#variables), which have the values of each node"
    )
    max_bytes: Size = Field(
        default=ABSENT,
        description="the most that Slipway may use of it. The least recently used datasets are removed first, never one in use. A study "
        "with a larger dataset is refused. Default: the disk's own limit",
    )
    check: Seconds = Field(
        default=ABSENT, description="how long a dataset in the cache may be hashed at each use. `1d`: always all of it. Default: `5s`"
    )


class StorageLimitKeys(Part):
    """What the network storage may be asked for."""

    bytes_per_s: Size = Field(
        default=ABSENT,
        description="bytes per second that all nodes of a run together read from storage, for datasets, images, checkpoints and "
        "parameters. Default: no limit",
    )
    readers: Count = Field(
        default=ABSENT,
        description="number of nodes of a run that read from storage at the same time. The other nodes get the bytes from them, and one "
        "that fails is replaced. Each node reads a file of parameters itself. Default: no limit",
    )


Price = Annotated[float, Strict(), Field(ge=0, le=MAX_PRICE, allow_inf_nan=False)]


class PriceKeys(Part):
    """What hours and energy cost here, for the table `cost`."""

    currency: TextLine = Field(description="name of the currency, such as `EUR`, at most 16 characters", max_length=16)
    gpu_hour: Price = Field(default=ABSENT, description="price of an hour of one GPU")
    node_hour: Price = Field(
        default=ABSENT, description="price of an hour of one node with all that is in it. If `gpu_hour` is given too, both are paid"
    )
    kwh: Price = Field(default=ABSENT, description="price of a kilowatt hour")


class SiteMount(Part):
    """What every container of the site finds, such as a licence file or a library of the cluster's."""

    source: Source = Field(
        description="a file or directory that all nodes have, relative to this file. It may hold [variables](#variables), as `storage` "
        "may. If no node has it, the run ends as `error`; if some nodes lack it, as `node_lost`"
    )
    target: Target = Field(
        description="the path in the container; with `engine: bare` it must be the source. A target that would hide `/slipway` or "
        "`/proc`, `/sys`, `/dev`, `/etc`, `/tmp` is refused"
    )
    writable: Flag = Field(default=False, description="whether the program may write to it")


class SiteFile(Part):
    """One cluster: where storage and cache are, what runs jobs and containers, what a node has. The science is in the study file."""

    storage: TextLine = Field(
        description="directory on network storage that all nodes see, for datasets, images and results. Relative to this file; it may "
        "hold [variables](#variables)"
    )
    cache: CacheKeys = Field(description="the node-local cache: [cache](#cache)")
    engine: Engine = Field(default=Site.engine, description="what starts the training program; `bare`: no container")
    scheduler: Scheduler = Field(default="local", description="what grants nodes; `local`: this machine")
    queue: TextLine = Field(default=ABSENT, description="Slurm partition, or queue of LSF, PBS and Grid Engine")
    account: TextLine = Field(default=ABSENT, description="the account that pays for the hours")
    qos: TextLine = Field(default=ABSENT, description="quality of service")
    constraint: TextLine = Field(default=ABSENT, description="node features, such as `a100`")
    parallel_environment: TextLine = Field(
        default=ABSENT,
        description="of Grid Engine: name of the parallel environment, and how many of its slots make a node, such as `mpi 8`. Default "
        "of the number: `cpus_per_node`",
    )
    directives: tuple[Directive, ...] = Field(
        default=(),
        description="extra lines of the batch script, without the scheduler's marker: `--reservation=x`, not `#SBATCH --reservation=x`. "
        "Slipway trusts them",
    )
    device: Literal["cuda", "cpu"] = Field(
        default=ABSENT,
        description="what training runs on. Default: `cuda` on a cluster, and on this machine if it has a GPU. With `cuda` a node "
        "without a GPU is an AllocationError, never a silent run on the CPU",
    )
    gpus_per_node: Count = Field(default=ABSENT, description="GPUs of a node. A study that asks for more is refused")
    cpus_per_node: Count = Field(default=ABSENT, description="cores of a node")
    memory_per_node: Size = Field(default=ABSENT, description="memory of a node")
    walltime: Seconds = Field(
        default=ABSENT,
        description="the longest job that the queue allows. A run may take longer if its framework can resume from a checkpoint; "
        "otherwise it is refused",
    )
    deadline_margin: Seconds = Field(default=DEADLINE_MARGIN_S, description="checkpoint and push begin this long before the end of the job")
    share_nodes: Flag = Field(default=False, description="whether runs may share a node. The record says which did")
    setup: tuple[TextLine, ...] = Field(
        default=(), description="shell lines before the node program, such as `module load`. Slipway trusts them"
    )
    images: dict[Name, TextLine] = Field(default={}, description="framework -> container image, instead of the framework's own")
    mounts: tuple[SiteMount, ...] = Field(
        default=(),
        description="what every container finds besides: [mounts](#mounts-and-env). If a program has a mount with the same target, the "
        "program's mount is used",
    )
    env: dict[Variable, VariableText] = Field(
        default={},
        description="environment variables of all training processes: [env](#mounts-and-env). If a program sets the same variable, the "
        "program's value is used",
    )
    registry_credentials: TextLine = Field(
        default=ABSENT,
        description="the file that `docker login` or `podman login` wrote, for private registries; read when a study starts. Relative "
        "to this file. Default: what the engine finds itself",
    )
    network_interface: TextLine = Field(default=ABSENT, description="interface between the nodes, such as `ib0`")
    storage_limit: StorageLimitKeys = Field(
        default=ABSENT, description="the load that runs may put on network storage: [storage_limit](#storage_limit)"
    )
    foreign_gpu: Literal["record", "refuse"] = Field(
        default="record",
        description="what happens if a process of somebody else uses a granted GPU before the start. `record`: a warning in the record. "
        "`refuse`: the attempt is prevented",
    )
    gpu_health: Literal["record", "refuse"] = Field(
        default="record",
        description="what happens if a granted GPU is [not healthy](#health-of-gpus) before the start. `record`: a warning in the "
        "record. `refuse`: the attempt is prevented",
    )
    shared: Literal["user", "group"] = Field(
        default="user",
        description="who may read what Slipway writes: you, or your group (umask 077 or 027). With `group` the group is trusted with "
        "the cache, too",
    )
    notify: NotifyKeys = Field(
        default=ABSENT, description="whom to notify of the end of a study: [notify](#notify). A study file may have its own"
    )
    prices: PriceKeys = Field(default=ABSENT, description="prices of hours and energy, for the table `cost`: [prices](#prices)")


def load_site(
    choice: str | None = None,
    environ: Mapping[str, str] = os.environ,
    directories: Callable[[], Sequence[Path]] = sites_directories,
    folder: Path | None = None,
) -> Site:
    """Load the site named or lying at `choice`, else at $SLIPWAY_SITE, else the nearest `default.yaml`, else `local`.

    `folder`: where the storage of the site `local` lies for a study. The nearest `default.yaml` is in the first directory of sites that has
    one. Raises ConfigError.
    """
    name, by = (choice, "the site asked for") if choice else (environ.get("SLIPWAY_SITE"), "$SLIPWAY_SITE")
    if name:
        return _named(name, by, environ, directories, folder)
    default = site_files(directories).get("default")
    return read_site(default, environ) if default else local_site(_sees_gpu(), folder)


def chosen_site(choice: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the name for the site in another directory, or in a job; None where nobody chose one."""
    name = choice or environ.get("SLIPWAY_SITE") or None
    return str(absolute_path(name, Path())) if name is not None and _is_path(name) else name


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


def read_site(path: Path, environ: Mapping[str, str] = os.environ) -> Site:
    """Read the site in the file `path`. Raises ConfigError."""
    document = read_document(path, "site")
    try:
        keys = SiteFile.model_validate(document.value)
    except ValidationError as error:
        raise validation_error(document, error, SiteFile, HINTS) from error
    return _site(keys, document, environ)


def _named(name: str, by: str, environ: Mapping[str, str], directories: Callable[[], Sequence[Path]], folder: Path | None) -> Site:
    if _is_path(name):
        try:
            return read_site(absolute_path(name, Path()), environ)
        except ValueError as error:
            raise ConfigError(f"{by} is wrong: {error}") from error
    files = site_files(directories)
    if name in files:
        return read_site(files[name], environ)
    if name == "local":
        return local_site(_sees_gpu(), folder)
    there = ", ".join(map(str, directories()))
    raise ConfigError(f"{by} is {name!r}: no such site in {there} (a path must end in .yaml); {choices(name, {*files, 'local'})}")


def _site(keys: SiteFile, document: Document, environ: Mapping[str, str]) -> Site:
    values: dict[str, Any] = {key: getattr(keys, key) for key in keys.model_fields_set}
    device = "cuda" if keys.scheduler != "local" or _sees_gpu() else "cpu"
    renamed = {key: field for field, key in KEYS_OF_FILE.items()}
    values = {"device": device, **{renamed.get(key, key): value for key, value in values.items()}}
    folder, cache = document.path.parent, keys.cache.path
    with _at(document, "storage"):
        _refuse_of_a_job("storage", keys.storage, keys.scheduler)
        values["storage"] = absolute_path(expanded(keys.storage, environ), folder)
        if braces := why_no_storage(values["storage"]):
            raise ValueError(braces)
    with _at(document, "cache", "path"):
        if keys.scheduler == "local":
            cache = expanded(cache, environ)  # elsewhere each node has its own values
        place = document.where(("cache", "path")) if keys.scheduler != "local" and variables_of(cache) else None
        path = Path(cache) if place is not None and not cache.startswith("/") else absolute_path(cache, folder)
    values["cache"] = Cache(path=path, max_bytes=keys.cache.max_bytes, check_s=keys.cache.check, place=place)
    if "registry_credentials" in values:
        with _at(document, "registry_credentials"):
            values["registry_credentials"] = absolute_path(keys.registry_credentials, folder)
    values["mounts"] = tuple(_mounts(keys, document, environ))
    values["env"] = tuple(sorted(keys.env.items()))
    if "notify" in values:
        with _at(document, "notify", "webhook_file"):
            values["notify"] = keys.notify.resolved(folder)
    if "storage_limit" in values:
        values["storage_limit"] = StorageLimit(bytes_per_s=keys.storage_limit.bytes_per_s, readers=keys.storage_limit.readers)
    if "prices" in values:
        values["prices"] = Prices(**keys.prices.model_dump())
    return Site(name=document.path.stem, **values)


def _mounts(keys: SiteFile, document: Document, environ: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    seen: set[str] = set()
    for number, mount in sorted(enumerate(keys.mounts), key=lambda one: one[1].target):
        with _at(document, "mounts", number, "target"):
            if mount.target in seen:
                raise ValueError(f"found {mount.target!r} a second time; valid: each target once")
            seen.add(mount.target)
        with _at(document, "mounts", number, "source"):
            _refuse_of_a_job("a mount", mount.source, keys.scheduler)
            source = str(absolute_path(expanded(mount.source, environ), document.path.parent))
        with _at(document, "mounts", number, "target"):
            if not in_container(keys.engine) and source != mount.target:
                raise ValueError(
                    f"found {mount.target!r}, and engine {keys.engine} has no container, in which {source} could be elsewhere; valid: a "
                    "target that is the source"
                )
        yield source, mount.target, mount.writable


def _refuse_of_a_job(what: str, path: str, scheduler: str) -> None:
    """Raise ValueError where `path` would be another one in each job."""
    name = of_a_job(variables_of(path))
    if name is not None and scheduler != "local":
        raise ValueError(
            f"${name} has another value in each job or on each machine, and {what} must be the same path for all; write it, or "
            "a variable that is the same everywhere, such as $USER or $HOME"
        )


@contextmanager
def _at(document: Document, *place: str | int) -> Iterator[None]:
    """Turn an error of a value into a fault of the file at that place. Raises ConfigError."""
    try:
        yield
    except ValueError as error:
        raise fault_error(document, [Fault(place=place, message=str(error))]) from error


def _sees_gpu() -> bool:
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/proc/driver/nvidia/version"))


# The site file beside a study.


BESIDE: Final = "site.yaml"
ADVICE: Final = "name the site: --site NAME_OR_PATH, such as --site local"


def site_beside(
    study: Path, choice: str | None, environ: Mapping[str, str], directories: Callable[[], Sequence[Path]] = sites_directories
) -> Path | None:
    """Return the file `site.yaml` beside a study file, where it is the study's site.

    It is, where nobody chose another one, by name or by a `default.yaml`. Raises ConfigError where something of that name lies there
    that is no plain file of ours alone.

    A site file says what is executed (`setup`), and is read more than once on its way to the nodes: so file and directory must be such
    that no other user can write to them.
    """
    beside = study.parent / BESIDE
    if choice or environ.get("SLIPWAY_SITE") or beside == study or "default" in site_files(directories):
        return None
    try:
        problem = _problem(beside, os.lstat(beside))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"{beside}, beside the study, cannot be looked at: {said}; {ADVICE}") from error
    if problem is not None:
        raise ConfigError(f"{problem}; a site file decides what is executed, so choose it: --site {beside}; or {ADVICE}")
    return beside


def _problem(beside: Path, status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return f"{beside}, beside the study, is not a regular file"
    if status.st_uid not in (0, os.geteuid()) or _is_writable_by_others(status):
        return f"{described(beside, status)}, beside the study, is not yours alone"
    place = beside.parent.stat()
    if _is_writable_by_others(place):
        return f"{described(beside.parent, place)}, in which the study lies, can be written by others"
    return (why_way_distrusted if place.st_mode & stat.S_IWGRP else why_distrusted)(beside.parent)


def _is_writable_by_others(status: os.stat_result) -> bool:
    mode = status.st_mode
    return bool(mode & stat.S_IWOTH) or (bool(mode & stat.S_IWGRP) and not _is_of_us_alone(status))


def _is_of_us_alone(status: os.stat_result) -> bool:
    """Return True if the file is ours, and its group is our own: the one of our name, which has no other members."""
    try:
        group, user = grp.getgrgid(status.st_gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    own = status.st_uid == os.geteuid() and status.st_gid == user.pw_gid and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}
