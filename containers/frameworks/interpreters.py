"""Which interpreter of this machine is the Python of the version that a framework needs: older frameworks run with no other one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from base.command import last_lines, run
from base.errors import ConfigError, SlipwayError
from containers.limits import INTERPRETER_S

# An interpreter without ensurepip makes no environments: Debian's python3 without python3-venv.
_ASK = "import sys, venv, ensurepip; sys.stdout.write('%d.%d' % sys.version_info[:2])"


def find_interpreter(framework: str, version: str, given: str | None, env: Mapping[str, str]) -> str:
    """The path of a Python `version`, such as 3.8: `given` (PYTHON= of make), or the first one that answers in PATH, among pyenv's and by
    uv. Raises ConfigError with all that was looked at."""
    if given is not None:
        problem = _problem(given, version, env)
        if problem is not None:
            raise ConfigError(f"framework {framework!r} needs Python {version}, and PYTHON={given} is none: {problem}")
        return given
    looked: list[str] = []
    for path in _candidates(version, env, looked):
        problem = _problem(path, version, env)
        if problem is None:
            return path
        looked.append(f"{path}: {problem}")
    raise ConfigError(
        f"framework {framework!r} needs Python {version}, and none was found here:\n"
        + "".join(f"  {line}\n" for line in looked)
        + f"`pyenv install {version}` or `uv python install {version}` installs it, without root; or say where it is: "
        f"make framework NAME={framework} PYTHON=/path/to/python{version}"
    )


def _candidates(version: str, env: Mapping[str, str], looked: list[str]) -> Iterator[str]:
    """In the order in which they are tried; what there is not is noted in `looked`."""
    name = f"python{version}"
    found = [path for folder in env.get("PATH", "").split(os.pathsep) if (path := shutil.which(name, path=folder or "."))]
    yield from found
    if not found:
        looked.append(f"{name} is not on PATH")
    versions = Path(env.get("PYENV_ROOT") or Path(env.get("HOME", "/"), ".pyenv"), "versions")
    kept = sorted(versions.glob(f"{version}.*/bin/{name}"), key=lambda path: [*map(int, re.findall(r"\d+", path.parts[-3]))], reverse=True)
    yield from map(str, kept)
    if not kept:
        looked.append(f"{versions} has no {version}")
    yield from _of_uv(version, env, looked)


def _of_uv(version: str, env: Mapping[str, str], looked: list[str]) -> Iterator[str]:
    uv = shutil.which("uv", path=env.get("PATH", ""))
    if uv is None:
        looked.append("uv is not on PATH")
        return
    done = run([uv, "python", "find", "--no-project", version], timeout_s=INTERPRETER_S, env=env)
    if done.returncode:
        looked.append(f"uv python find {version}: {last_lines(done.stderr, 1)}")
    else:
        yield done.stdout.strip()


def _problem(path: str, version: str, env: Mapping[str, str]) -> str | None:
    """Why this is no Python of the version that can make an environment; None: it is one."""
    try:
        done = run([path, "-c", _ASK], timeout_s=INTERPRETER_S, env=env)
    except SlipwayError as error:
        return str(error)
    if done.returncode:
        return f"it ended with {done.returncode}: {last_lines(done.stderr, 1)}"
    return None if done.stdout == version else f"it is Python {done.stdout}"
