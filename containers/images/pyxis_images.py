"""Keep the images that pyxis has unpacked on this node, each under a name of ours, so that containers start in half a second and do not
unpack it again.

The name says who unpacked it: `slipway-u<uid>-<job>.<restart>-<image>-<host>-<digits>`, which enroot lists as `pyxis_...`, where several
nodes may share it too. The mark of an image (last_use.py) says which one is whole: it is written when pyxis has ended well. Whatever no
mark names is what a killed load has left, or belongs to a cache that is gone: it goes when its job is dead (containers.reaping).
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base import process, sanitize
from base.errors import ContainerError
from containers.engines import container_client, pyxis
from containers.images.last_use import tree_of
from containers.limits import IMAGE_REMOVE_S, PYXIS_UNPACK_S

ENGINE: Final = pyxis.NAME
PROGRAMS: Final = ("srun", "enroot")
_LISTED_AS: Final = re.compile(
    r"pyxis_(?:\d+_)?(?P<name>slipway-u(?P<uid>\d+)-(?P<job>\d+)\.(?P<restart>\d+)-[0-9a-f]{12}-(?P<host>.+)-[0-9a-f]{6})"
)
"""With the job's number where the site has container_scope=job."""
_HIDDEN: Final = ("ENROOT_", "XDG_")
"""Slurm starts enroot for pyxis, without what a user has set: it is asked about the same place."""
_LIST: Final = ("enroot", "list", "--fancy")
_WHERE: Final = "enroot of pyxis"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A tree that enroot lists."""

    listed_as: str
    name: str
    uid: int
    job: str
    """The job as labels have it: slurm:JOB:RESTARTS."""
    host: str
    runs: bool
    """True if a process is in it."""


def name_of(short: str, environ: Mapping[str, str], uid: int, host: str, token: str) -> str:
    """Name a tree that the job of `environ` unpacks. Raises ContainerError outside of one."""
    job = environ.get(pyxis.JOB)
    if not job:
        raise ContainerError(f"{ENGINE}: an image is unpacked by a step of a job of Slurm, and {pyxis.JOB} is not set here")
    return f"slipway-u{uid}-{job}.{environ.get('SLURM_RESTART_COUNT') or 0}-{short}-{host}-{token}"


def parse(text: str) -> tuple[Tree, ...]:
    """Read what `enroot list --fancy` prints of ours: a line per process, the name in the first of each tree."""
    found = []
    for line in text.splitlines():
        words = line.split()
        match = _LISTED_AS.fullmatch(words[0]) if words and not line.startswith(" ") else None
        if match is not None:
            runs = len(words) > 1 and sanitize.ascii_int(words[1]) is not None
            job = f"slurm:{match['job']}:{match['restart']}"
            found.append(Tree(listed_as=words[0], name=match["name"], uid=int(match["uid"]), job=job, host=match["host"], runs=runs))
    return tuple(found)


def trees() -> tuple[Tree, ...]:
    """List the trees of this node, whoever's. Raises ContainerError."""
    listed = container_client.call(_LIST, env=container_client.environment(_HIDDEN))
    if listed.returncode:
        raise ContainerError(f"{_WHERE}: what is unpacked here cannot be listed: {process.last_lines(listed.stderr, 3)}")
    return tuple(tree for tree in parse(listed.stdout) if tree.host == host_here())


def host_here() -> str:
    """Return the name of this node."""
    return os.uname().nodename.partition(".")[0]


def provide(place: Path, file: Path, short: str, forget: Callable[[], None]) -> str:
    """Return the name of the whole tree of the image `file`, unpacked now where there is none; `forget()` takes the image's mark away
    before. Called under the image's lock. Raises ContainerError."""
    marked = tree_of(place, short, ENGINE)
    if marked is not None and is_here(marked):
        return marked
    forget()
    name = name_of(short, os.environ, os.geteuid(), host_here(), secrets.token_hex(3))
    done = container_client.call(pyxis.unpack_argv(name, str(file), os.environ), PYXIS_UNPACK_S)
    if done.returncode:
        message = f"image {short} cannot be unpacked by {ENGINE}: {process.last_lines(done.stderr, 5)}"
        try:
            remove(name)
        except ContainerError as error:  # the first failure is the one to tell: its cause is often that of the second too
            message += f"; and what it left stays until its job has ended: {error}"
        raise ContainerError(message)
    return name


def is_here(name: str) -> bool:
    """Return True if enroot lists it. Raises ContainerError."""
    return any(tree.name == name for tree in trees())


def remove(name: str) -> None:
    """Remove a tree, if it is there. Raises ContainerError."""
    for tree in trees():
        if tree.name == name:
            argv = ("enroot", "remove", "--force", tree.listed_as)
            done = container_client.call(argv, IMAGE_REMOVE_S, container_client.environment(_HIDDEN))
            if done.returncode:
                raise ContainerError(f"{_WHERE}: {tree.listed_as} cannot be removed: {process.last_lines(done.stderr, 3)}")
