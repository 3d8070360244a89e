"""Check that a node has what a program of the study needs: its mounts, and without a container its interpreter and command.

What is missing now is missing in the next attempt too: so it is said before any rank starts, as the program's own failure.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base import errors, process
from containers.rank_variables import fill, names_in
from workflow.run.node import limits
from workflow.run.plan import Framework

PACKAGES: Final = """
import importlib.util, sys
try:
    from importlib.metadata import PackageNotFoundError, version
except ImportError:  # before Python 3.8
    version = None
lacks = []
for word in sys.argv[1:]:
    name, _, wanted = word.partition("==")
    try:
        found = version(name) if wanted and version else ""
    except PackageNotFoundError:
        lacks.append(word)
        continue
    if found and found != wanted and found.partition("+")[0] != wanted:
        lacks.append("%s (found %s)" % (word, found))
    elif not wanted:
        try:
            there = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            there = False
        if not there:
            lacks.append(word)
print(", ".join(lacks))
"""
"""Prints which of its arguments the interpreter lacks, and which version it has instead; for Python 3.6 and newer."""


def refuse_what_is_missing(framework: Framework, contained: bool) -> None:
    """Raise TrainingFailed for what the program lacks here. Runs in a child: mounts may lie on a storage that hangs."""
    problem = what_is_missing(framework, os.environ, contained=contained)
    if problem is not None:
        raise errors.TrainingFailed(problem)


def what_is_missing(framework: Framework, environ: Mapping[str, str], *, contained: bool) -> str | None:
    """Return what this node lacks, and what to do, as far as it is known before the program's files are copied."""
    problem = why_not_startable(framework, None, None, environ, contained=contained)
    if problem is not None or contained:
        return problem
    return why_no_mpirun(framework.name, framework.launcher, environ) or why_packages_differ(framework)


def why_no_mpirun(name: str, launcher: str, environ: Mapping[str, str]) -> str | None:
    """Return why ranks cannot be started by Open MPI, None if they can, or are started in another way."""
    path = environ.get("PATH", os.defpath)
    if launcher != "mpirun" or shutil.which("mpirun", path=path) is not None:
        return None
    return f"{name!r} is started by mpirun, which is not on the PATH ({path}): install Open MPI 4 on all nodes (Debian: openmpi-bin)"


def is_looked_at(framework: Framework) -> bool:
    """Return True if the node is checked for the program's needs before staging."""
    return framework.own or bool(framework.mounts)


def why_not_startable(
    framework: Framework, folder: Path | None, out: Path | None, environ: Mapping[str, str], *, contained: bool
) -> str | None:
    """Return what is missing, and what to do, None if nothing is. `folder`, `out`: the copy of its folder, and where it works, None before
    they are made. Only a container can tell what an image holds (`contained`); the program's own files are known here."""
    for source, target, _ in framework.mounts:
        if not Path(source).exists():
            what = (
                f"a mount of the program {framework.name!r} or of the site" if contained else f"a mount of the program {framework.name!r}"
            )
            return f"{source}, {what} ({target}), is not there: make it on all nodes, or take it out of `mounts`"
    if not framework.own:
        return None
    own = framework.python if (framework.python or "").startswith("/") and not contained else None
    if own is not None and (why := _why_not_executable(own)) is not None:
        return f"{own}, the `python` of the program {framework.name!r}, {why}: it must be on all nodes"
    places = {} if folder is None else {"folder": str(folder), "out": str(out)}
    values = {"python": own or sys.executable, **places}
    commands = [("command", framework.command, ()), *((f"sidecar {one.name}", one.command, one.env) for one in framework.sidecars)]
    for what, command, env in commands:
        if contained and not command[0].startswith("{folder}/"):
            continue
        word, path = fill(command[0], values), {**environ, **dict(framework.variables), **dict(env)}.get("PATH", os.defpath)
        if out is None and "/" in word and not word.startswith("/"):
            continue
        if not names_in(word) and (why := _why_not_found(word, out or Path(), path)) is not None:
            return f"{command[0]!r}, the {what} of the program {framework.name!r}, {why}"
    return None


def why_packages_differ(framework: Framework) -> str | None:
    """Return which packages the interpreter of a study's program lacks, torch included where torchrun starts it, without importing any."""
    python = framework.bare_python or sys.executable
    packages = (*framework.packages, *(("torch",) if framework.own and framework.launcher == "torchrun" else ()))
    if not packages:
        return None
    try:
        asked = process.run([python, "-c", PACKAGES, *packages], timeout_s=limits.PACKAGES_S)
    except errors.SlipwayError as error:
        return f"{python} cannot be asked for the packages that the program {framework.name!r} needs: {error}"
    said = asked.stdout.strip() if asked.returncode == 0 else f"it ended with {asked.returncode}: {asked.stderr[-500:]}"
    if not said:
        return None
    return f"{python} lacks packages that the program {framework.name!r} needs: {said}; install them on all nodes, or name another `python`"


def _why_not_found(word: str, out: Path, path: str) -> str | None:
    if "/" not in word:
        return None if shutil.which(word, path=path) else f"is not on the PATH ({path}): install it on all nodes, or give its path"
    why = _why_not_executable(str(out / word))
    return None if why is None else f"{why}: give a path that is there on all nodes, or {{folder}}/... of a file in its folder"


def _why_not_executable(path: str) -> str | None:
    if not Path(path).is_file():
        return "is no file" if os.path.lexists(path) else "is not there"
    return None if os.access(path, os.X_OK) else "may not be executed (chmod +x)"
