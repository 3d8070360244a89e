"""Which clusters live on this machine: one small file each in /run, written before anything else of the cluster is made."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tests.minicluster.spec import FREEZERS, ClusterError, freezer
from tests.minicluster.waiting import run

REGISTRY = Path("/run/slipway-minicluster")
LOCAL = Path("/local")  # where each node's own disk is mounted; the directory must exist on this machine
LOCAL_IS_OURS = REGISTRY / ".local-is-ours"


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Short: while a name is taken or given back."""
    REGISTRY.mkdir(mode=0o755, exist_ok=True)
    with (REGISTRY / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def names() -> list[str]:
    return sorted(path.name for path in REGISTRY.glob("[a-z]*")) if REGISTRY.is_dir() else []


def directory_of(name: str) -> Path:
    try:
        text = (REGISTRY / name).read_text()
    except OSError as error:
        raise ClusterError(f"no cluster {name!r} is up; up are: {', '.join(names()) or 'none'}") from error
    if not text:
        raise ClusterError(f"`up` of {name!r} was killed when it had only begun: `down --name {name}`")
    return Path(text)


def begun_directory_of(name: str) -> Path | None:
    """None where `up` was killed between taking the name and writing what for."""
    text = (REGISTRY / name).read_text()
    return Path(text) if text else None


def add(name: str, directory: str) -> None:
    with locked():
        try:
            with (REGISTRY / name).open("x") as file:
                file.write(directory)
        except FileExistsError as error:
            raise ClusterError(f"a cluster {name!r} is up already, in {directory_of(name)}: `down --name {name}` first") from error
        if not (freezer() / "release_agent").exists():
            freezer().mkdir(exist_ok=True)
            run(["mount", "-t", "cgroup", "-o", "freezer", "none", str(freezer())])
        if not LOCAL.exists():
            LOCAL_IS_OURS.touch()
            LOCAL.mkdir()


def remove(name: str) -> None:
    """The last one takes /local along if we made it: removing a directory undoes mounts on it in every namespace, so not before."""
    with locked():
        (REGISTRY / name).unlink(missing_ok=True)
        if names():
            return
        if LOCAL_IS_OURS.exists():
            with contextlib.suppress(OSError):
                os.rmdir(LOCAL)
            LOCAL_IS_OURS.unlink()
        if (FREEZERS[1] / "release_agent").exists():
            run(["umount", str(FREEZERS[1])])
            FREEZERS[1].rmdir()
