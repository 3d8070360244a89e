"""Keep the images that pyxis has unpacked on this node, each under a name of ours, so that containers start in half a second and do not
unpack it again.

The name says whose it is: `slipway-u<uid>-<image>-<host>-<digits of the cache>`, which enroot lists as `pyxis_...`, where several nodes may
share it too. The mark of an image (last_use.py) says that it is whole: it is written when pyxis has ended well. What a killed load has left
goes when the image is loaded again, or is removed.
"""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from base import process, sanitize
from base.errors import ContainerError
from containers.engines import container_start, pyxis
from containers.images.last_use import last_used
from containers.limits import IMAGE_REMOVE_S, PYXIS_UNPACK_S

ENGINE: Final = pyxis.NAME
_LISTED_AS: Final = re.compile(r"pyxis_(?:\d+_)?(slipway-u\d+-[0-9a-f]{12}-.+-[0-9a-f]{6})")
"""With the job's number where the site has container_scope=job."""
_HIDDEN: Final = ("ENROOT_", "XDG_")
"""Slurm starts enroot for pyxis, without what a user has set: it is asked about the same place."""


class Tree(NamedTuple):
    """A tree that enroot lists, and whether a process is in it."""

    listed_as: str
    runs: bool


def name_of(place: Path, short: str) -> str:
    """Name the tree of an image of the cache with the images `place`."""
    host = os.uname().nodename.partition(".")[0]
    return f"slipway-u{os.geteuid()}-{short}-{host}-{hashlib.sha256(bytes(place.absolute())).hexdigest()[:6]}"


def parse(text: str) -> dict[str, Tree]:
    """Read what `enroot list --fancy` prints of ours, by name: a line per process, the name in the first of each tree."""
    lines = (line.split() for line in text.splitlines() if line and not line.startswith(" "))
    found = {match[1]: words for words in lines if (match := _LISTED_AS.fullmatch(words[0]))}
    return {name: Tree(words[0], len(words) > 1 and sanitize.ascii_int(words[1]) is not None) for name, words in found.items()}


def tree(name: str) -> Tree | None:
    """Return the tree of that name. Raises ContainerError."""
    return parse(_enroot(["enroot", "list", "--fancy"], "what is unpacked here cannot be listed").stdout).get(name)


def _enroot(argv: list[str], problem: str) -> process.CommandResult:
    done = container_start.call(argv, IMAGE_REMOVE_S, container_start.environment(_HIDDEN))
    if done.returncode:
        raise ContainerError(f"enroot of pyxis: {problem}: {process.last_lines(done.stderr, 3)}")
    return done


def provide(place: Path, file: Path, short: str, forget: Callable[[], None]) -> None:
    """Unpack the image `file` where its tree is not here, or not whole; `forget()` takes the image's mark away before. Called under the
    image's lock. Raises ContainerError."""
    name = name_of(place, short)
    if last_used(place, short, ENGINE) is not None and tree(name) is not None:
        return
    forget()
    remove(name)
    done = container_start.call(pyxis.unpack_argv(name, str(file), os.environ), PYXIS_UNPACK_S)
    if done.returncode:
        with contextlib.suppress(ContainerError):  # the next load removes it
            remove(name)
        raise ContainerError(f"image {short} cannot be unpacked by {ENGINE}: {process.last_lines(done.stderr, 5)}")


def remove(name: str) -> None:
    """Remove a tree, if it is there. Raises ContainerError, also where a container runs in it. Where enroot is not, there is none."""
    found = tree(name) if shutil.which("enroot") else None
    if found is None:
        return
    if found.runs:
        raise ContainerError(f"a container runs in {found.listed_as}, which is unpacked of it")
    _enroot(["enroot", "remove", "--force", found.listed_as], f"{found.listed_as} cannot be removed")
