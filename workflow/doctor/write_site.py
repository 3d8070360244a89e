"""The draft of a site file: a commented text from what was found, checked by the loader, published whole or not at all."""

from __future__ import annotations

import getpass
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import yaml

from base.errors import ConfigError
from base.names import is_name, slug
from base.publish import publish
from base.userpath import absolute_path
from cluster.installation import SCHEMAS, own_sites
from cluster.schedulers.doctor import Value
from containers.engines import ENGINES
from workflow.doctor.candidates import gather
from workflow.doctor.surroundings import Surroundings
from workflow.study.site import Site
from workflow.study.site_file import read_site

SCHEMA: Final = "site.schema.json"
GUESS: Final = "A GUESS: "
COLUMN: Final = 44
ORDER: Final = ("scheduler", "engine", "queue", "account", "device", "gpus_per_node", "cpus_per_node", "memory_per_node", "walltime")
UNSET: Final[Mapping[str, str]] = {
    "queue": "the scheduler's default",
    "account": "whom the hours are charged to",
    "gpus_per_node": "none were seen",
    "walltime": "the longest a job may take",
}


def site_text(found: Mapping[str, Value], where: str, schema: Path) -> str:
    """Pure: the whole file."""
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
    if "network_interface" in values:
        lines.append(_line("network_interface", values["network_interface"]))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def target_of(name: str) -> Path:
    """Where it goes: a name of the directory of sites, which may have to be made, or a path that ends in .yaml. Raises ConfigError."""
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


def write_site(name: str, where: Surroundings, say: Callable[[str], None]) -> None:
    """Look, write, check, publish, and tell what is to be read. Raises ConfigError, SchedulerOutputError."""
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
    say(text)
    say(f"written to {target}")
    guesses = [key for key, value in found.items() if not value.sure]
    if guesses:
        say(f"guessed, look at them: {', '.join(guesses)}")
    choice = target.stem if target.parent == own_sites() else str(target)
    say(f"next: slipway doctor --site {choice}")


def _line(key: str, value: Value) -> str:
    comment = f"# {'' if value.sure else GUESS}{value.why}".replace("\n", " ")
    text = yaml.safe_dump(value.value, width=10**6, allow_unicode=True).splitlines()[0]
    return f"{key}: {text}".ljust(COLUMN - 1) + f" {comment}"
