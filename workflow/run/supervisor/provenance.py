"""Which Slipway ran: version, commit, whether the checkout was changed. One git call; run it in a child, the checkout may be on storage."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from base import VERSION
from base.command import run
from base.errors import SlipwayError
from base.rooms import ROOMS
from workflow.run.supervisor.limits import GIT_S


def slipway_provenance(root: str = str(ROOMS)) -> dict[str, Any]:
    """`slipway_version`, `git_sha`, `git_dirty`, `python`; None for what cannot be known, such as the commit of an installed package."""
    return {"slipway_version": VERSION, "python": platform.python_version(), **_git(root)}


def parse_git_status(text: str) -> dict[str, Any]:
    """The output of `git status --porcelain=v2 --branch`."""
    sha, dirty = None, False
    for line in text.splitlines():
        if line.startswith("# branch.oid "):
            sha = line.split()[2]
        elif not line.startswith("#"):
            dirty = True
    return {"git_sha": sha if sha and sha != "(initial)" else None, "git_dirty": dirty if sha else None}


def _git(root: str) -> dict[str, Any]:
    unknown = {"git_sha": None, "git_dirty": None}
    if not Path(root, ".git").exists():
        return unknown
    argv = ["git", "-C", root, "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        result = run(argv, timeout_s=GIT_S)
    except SlipwayError:
        return unknown
    return parse_git_status(result.stdout) if result.returncode == 0 else unknown
