"""Write the draft of a site file: a commented text from what was found, checked by the loader, published whole or not at all."""

import getpass
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from base.errors import ConfigError
from base.humanize import absolute_path, is_name, slug
from base.publish import publish
from cluster.installation import SCHEMAS, default_cache, default_storage, own_checkout, own_sites
from cluster.machine import memory_bytes, usable_cores
from containers.engines import ENGINES
from extras.doctor import slurm
from extras.doctor.schedulers import surroundings
from extras.doctor.types import Context, Value, mib
from workflow.commands.watching import output
from workflow.study.site import Site, local_site
from workflow.study.site_file import read_site

# The values that a site file could have, found by looking. Every value says where it comes from.


SHARED: Final = ("SCRATCH", "WORK", "PROJECT", "WORKDIR", "GROUP_SCRATCH", "HOME")
"""Variables that may name network storage, the best first."""

Draft = Mapping[str, Value]


def gather(where: Context, user: str) -> dict[str, Value]:
    """Gather values for the site file from this machine and, where it is Slurm, the scheduler."""
    why = "its commands are on PATH" if where.scheduler != "local" else "no commands of a scheduler that know a cluster are on PATH"
    found: dict[str, Value] = {"scheduler": Value(value=where.scheduler, why=why)}
    if where.scheduler == "slurm":
        found |= slurm.propose()
    elif where.scheduler == "local":
        found["cpus_per_node"] = Value(value=len(usable_cores()), why="cores of this machine that we may use")
        found["memory_per_node"] = Value(value=mib(memory_bytes() or 0), why="memory of this machine")
    found |= _device(found, where)
    found["storage"] = _storage(where)
    found["cache"] = _cache(user, where)
    return found


def _device(found: Draft, where: Context) -> dict[str, Value]:
    if where.scheduler == "local":
        return {}
    if "gpus_per_node" in found:
        return {"device": Value(value="cuda", why="the scheduler grants GPUs", sure=False)}
    return {"device": Value(value="cpu", why="no GPUs were seen in this partition", sure=False)}


def _storage(where: Context) -> Value:
    if where.scheduler == "local":
        return Value(value=str(default_storage()), why=_whose())
    for name in SHARED:
        place = os.environ.get(name, "")
        if place.startswith("/") and os.access(place, os.W_OK):
            return Value(value=f"{place}/slipway", why=f"below ${name}; do all nodes see this?", sure=False)
    return Value(value=str(default_storage()), why="no network storage was found; do all nodes see this?", sure=False)


def _cache(user: str, where: Context) -> Value:
    if where.scheduler == "local":
        return Value(value=str(default_cache()), why=_whose())
    return Value(value=f"/var/tmp/slipway-{user}", why="on which local disk do the compute nodes have room?", sure=False)  # noqa: S108


def _whose() -> str:
    return "under the checkout" if own_checkout() else "where this platform keeps what is yours"


SCHEMA: Final = "site.schema.json"
GUESS: Final = "A GUESS: "
COLUMN: Final = 44
ORDER: Final = ("scheduler", "engine", "queue", "account", "device", "gpus_per_node", "cpus_per_node", "memory_per_node", "walltime")
UNSET: Final[Mapping[str, str]] = {
    "queue": "the scheduler's default",
    "account": "whom the hours are charged to",
    "gpus_per_node": "none were seen",
    "cpus_per_node": "the cores of a node that a run gets",
    "walltime": "the longest a job may take",
}


def site_text(found: Mapping[str, Value], where: str, schema: Path) -> str:
    """Return the text of the whole file."""
    lines = [
        f"# yaml-language-server: $schema={schema}",
        f"# Written by `slipway doctor --write-site` {where}. Read it: what is marked A GUESS was chosen by looking,",
        "# nobody was asked. Check it with `slipway doctor --site NAME`, inside an allocation too. Every key: the file in the first line.",
        _line("storage", found["storage"]),
        "cache:",
        _line("  path", found["cache"]),
        "  # max_bytes: 500GB".ljust(COLUMN) + "# how much of that disk is ours; default: what it has",
        "",
    ]
    values = {"engine": Value(value=Site.engine, why=f"{' | '.join(ENGINES)}; {Site.engine} = no container"), **found}
    for key in ORDER:
        if key in values:
            lines.append(_line(key, values[key]))
        elif key in UNSET and found["scheduler"].value != "local":
            lines.append(f"# {key}:".ljust(COLUMN) + f"# {UNSET[key]}")
    lines.append("share_nodes: false".ljust(COLUMN) + "# runs share no node")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def target_of(name: str) -> Path:
    """Return the path of the new file: a name in the directory of sites, which may have to be made, or a path that ends in .yaml. Raises
    ConfigError."""
    if name.endswith((".yaml", ".yml")):
        try:
            target = absolute_path(name, Path())
        except ValueError as error:
            raise ConfigError(f"--write-site: {error}") from error
    elif is_name(name) and name != "local":
        target = own_sites() / f"{name}.yaml"
    else:
        raise ConfigError(
            f"--write-site {name!r}: no name for a site; small letters, digits, . _ - and not `local`, or a path ending in .yaml"
        )
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} is there already, and is not overwritten: choose another NAME, or remove it")
    if target.parent != own_sites() and not target.parent.is_dir():
        raise ConfigError(f"{target} cannot be written: {target.parent} is not a directory")
    return target


def write_site(name: str) -> None:
    """Look around, write, check, publish, and print what is to be read. Raises ConfigError, SchedulerOutputError."""
    where = surroundings(os.environ, local_site(has_gpu=False))
    target = target_of(name)
    user = slug(getpass.getuser()) or "user"
    found = gather(where, user)
    inside = f"inside job {where.job_id} of {where.scheduler}" if where.job_id else f"on {where.hostname}"
    beside = target.parent == SCHEMAS.parent / "sites"
    text = site_text(found, inside, Path("../schemas" if beside else SCHEMAS, SCHEMA))
    with tempfile.TemporaryDirectory(prefix="slipway-doctor-") as directory:
        draft = Path(directory, target.name)
        draft.write_text(text)
        read_site(draft)
    target.parent.mkdir(parents=True, exist_ok=True)
    publish(target, text.encode())
    output.line(text)
    output.line(f"written to {target}")
    guesses = [key for key, value in found.items() if not value.sure]
    if guesses:
        output.line(f"guessed, look at them: {', '.join(guesses)}")
    choice = target.stem if target.parent == own_sites() else str(target)
    output.line(f"next: slipway doctor --site {choice}")


def _line(key: str, value: Value) -> str:
    comment = f"# {'' if value.sure else GUESS}{value.why}".replace("\n", " ")
    text = yaml.safe_dump(value.value, width=10**6, allow_unicode=True).splitlines()[0]
    return f"{key}: {text}".ljust(COLUMN - 1) + f" {comment}"
