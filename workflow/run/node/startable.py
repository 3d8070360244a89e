"""Whether this node has what a program of the study needs to be started: its mounts, and without a container its interpreter and command.

What is missing now is missing in the next attempt too: so it is said before any rank starts, as the program's own failure.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from containers.placeholders import fill, names_in
from workflow.run.plan import Framework


def why_not_startable(framework: Framework, folder: Path, out: Path, environ: Mapping[str, str], *, contained: bool) -> str | None:
    """What is missing, and what to do; None: nothing that can be seen from here. `folder`, `out`: the copy of its folder, and where it
    works; `environ`: of this process. Of an image (`contained`) only a
    container can tell what it holds; the program's own files are known here."""
    for source, _, _ in framework.mounts:
        if not Path(source).exists():
            return f"{source}, a mount of the program {framework.name!r}, is not there: make it on all nodes, or take it out of `mounts`"
    own = framework.python if (framework.python or "").startswith("/") and not contained else None
    if own is not None and (why := _why_not_executable(own)) is not None:
        return f"{own}, the `python` of the program {framework.name!r}, {why}: it must be on all nodes"
    values = {"python": own or sys.executable, "folder": str(folder), "out": str(out)}
    commands = [("command", framework.command, ()), *((f"sidecar {one.name}", one.command, one.env) for one in framework.sidecars)]
    for what, command, env in commands:
        if contained and not command[0].startswith("{folder}/"):
            continue
        word, path = fill(command[0], values), {**environ, **dict(framework.variables), **dict(env)}.get("PATH", os.defpath)
        if not names_in(word) and (why := _why_not_found(word, out, path)) is not None:
            return f"{command[0]!r}, the {what} of the program {framework.name!r}, {why}"
    return None


def _why_not_found(word: str, out: Path, path: str) -> str | None:
    if "/" not in word:
        return None if shutil.which(word, path=path) else f"is not on the PATH ({path}): install it on all nodes, or give its path"
    why = _why_not_executable(str(out / word))
    return None if why is None else f"{why}: give a path that is there on all nodes, or {{folder}}/... of a file in its folder"


def _why_not_executable(path: str) -> str | None:
    if not Path(path).is_file():
        return "is no file" if os.path.lexists(path) else "is not there"
    return None if os.access(path, os.X_OK) else "may not be executed (chmod +x)"
