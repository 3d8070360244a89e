"""The files of an image that `docker save` has written, unpacked by an ordinary user: the layers one upon the other, without device
nodes, and everything readable by whom it belongs to."""

from __future__ import annotations

import copy
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NotRequired, TypedDict

from base.errors import ContainerError
from base.typed import json_as

_REMOVED: Final = ".wh."
_EMPTIED: Final = ".wh..wh..opq"
_MOST: Final = 16 << 20


class _Saved(TypedDict):
    Config: str
    Layers: list[str]


class _OfPrograms(TypedDict):
    Env: NotRequired[list[str] | None]


class _Config(TypedDict):
    config: NotRequired[_OfPrograms | None]


def unpack(archive: Path, root: Path) -> None:
    """Into the new directory `root`. What the image says of its environment goes to /etc/environment, where enroot looks for it. Raises
    ContainerError."""
    try:
        root.mkdir()
        with tarfile.open(archive) as saved:
            (image,) = json_as(list[_Saved], _read(saved, "manifest.json"), "manifest.json", ContainerError)
            for layer in image["Layers"]:
                with tarfile.open(fileobj=saved.extractfile(layer)) as files:
                    _lay(files, root)
            config = json_as(_Config, _read(saved, image["Config"]), image["Config"], ContainerError).get("config")
        _write_environment(root, (config.get("Env") if config else None) or ())
    except (OSError, KeyError, ValueError, tarfile.TarError, ContainerError) as error:
        raise ContainerError(f"{archive} is not an image that `docker save` has written, or cannot be unpacked: {error}") from error


def _write_environment(root: Path, environment: Sequence[str]) -> None:
    place = root / "etc" / "environment"
    _inside(str(place.parent.relative_to(root)), root)  # the image may have a link there
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.write_text("".join(f"{line}\n" for line in environment if "\n" not in line))


def _read(saved: tarfile.TarFile, name: str) -> str:
    file = saved.extractfile(name)
    if file is None:
        raise ContainerError(f"{name} is no file")
    return file.read(_MOST).decode()


def _lay(layer: tarfile.TarFile, root: Path) -> None:
    """One layer upon those below: it may remove what they have, or replace it by something of another kind."""
    layer.extraction_filter = lambda member, _: member  # `_ours` is one
    for found in layer:
        _remove_link(root, root / found.name.lstrip("/"))
        member = _ours(found, root)
        path = root / member.name
        if path.name == _EMPTIED:
            for entry in path.parent.iterdir():
                _remove(entry)
        elif path.name.startswith(_REMOVED):
            _remove(path.with_name(path.name.removeprefix(_REMOVED)))
        elif not (member.ischr() or member.isblk() or member.isfifo()):
            if not member.isdir():
                _remove(path)
            layer.extract(member, root)


def _remove_link(root: Path, path: Path) -> None:
    """A link below an entry is replaced, wherever it leads: those of images lead to `/...`, which is outside until they run."""
    if path.is_symlink() and _is_below(path.parent, root):
        path.unlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _ours(member: tarfile.TarInfo, root: Path) -> tarfile.TarInfo:
    """So that we can read it, and nobody else writes it; never outside of `root`, nor a second name of a file there, nor in its place. As
    tarfile's own filters, which Python has from 3.11.4 on, and Debian 12 has 3.11.2. Raises ContainerError."""
    safe = copy.copy(member)
    safe.name = _inside(member.name, root)
    if not member.isdir() and root / safe.name == root:
        raise ContainerError(f"{member.name!r} is in the place of the whole image")
    if member.islnk():
        safe.linkname = _inside(member.linkname, root)
    safe.mode = (member.mode or 0) & 0o755 | (0o700 if member.isdir() else 0o400)
    return safe


def _inside(name: str, root: Path) -> str:
    """Without the slash before all. Raises ContainerError where a link or `..` leads out."""
    stripped = name.lstrip("/")
    if not _is_below(root / stripped, root):
        raise ContainerError(f"{name!r} leads to {os.path.realpath(root / stripped)}, which is outside the destination")
    return stripped


def _is_below(path: Path, root: Path) -> bool:
    """Where links lead. Path.resolve() raises at those that lead to each other."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
