"""Can our programs run in this image at all? Asked where it is archived, in seconds, before anybody waits in a queue for it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from typing import Final

from base.command import CommandResult, last_lines
from base.errors import ContainerError
from cluster.holder import holder_of
from containers.images.commands import ask
from containers.images.files import FILE_ENGINES
from containers.images.model import FILES, PinnedImage
from containers.labels import HOLDER, JOB, TAG, USER
from containers.limits import IMAGE_CHECK_S
from containers.node_facts import limits_here

OLDEST: Final = (3, 6)
CHECK: Final = "image-check"
PROGRAM: Final = "import sys; sys.stdout.write('slipway %d %d' % sys.version_info[:2])"


def contract_argv(
    image: PinnedImage,
    python: str,
    user: tuple[int, int],
    limits: Sequence[tuple[str, int]] = (),
    labels: Sequence[tuple[str, str]] = (),
    place: str = "",
) -> list[str]:
    """Run the interpreter as `user` (uid, gid), without network, rights or a writable root. `limits`: as of a run; an engine's own may be
    more than we may have. `labels`: what it is found by, should its client be killed.
    `place`: an empty directory of ours."""
    if image.form in FILES:
        return FILE_ENGINES[image.engine].run_argv(image.source, (python, "-c", PROGRAM), place)
    rights = [
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--read-only",
        "--user",
        "{}:{}".format(*user),
        "--env",
        "HOME=/tmp",
    ]
    ours = [word for name, most in limits for word in ("--ulimit", f"{name}={most}:{most}")]
    named = [word for name, value in labels for word in ("--label", f"{name}={value}")]
    start = [image.engine, "run", "--rm", *named, "--network", "none", *ours, *rights, "--entrypoint", python]
    return [*start, image.image_id.removeprefix("sha256:"), "-c", PROGRAM]


def judge_contract(image: PinnedImage, python: str, result: CommandResult) -> None:
    """Pure. Raise ContainerError unless the interpreter ran and is new enough."""
    words = result.stdout.split()
    if result.returncode or len(words) != 3 or words[0] != "slipway":
        raise ContainerError(
            f"image {image.reference!r} cannot run our programs: {python!r} in it, as our user and without rights, ended with "
            f"{result.returncode}: {last_lines(result.stderr or result.stdout, 3)}; it needs that interpreter, on its PATH, for any user"
        )
    version = int(words[1]), int(words[2])
    if version < OLDEST:
        raise ContainerError(
            f"image {image.reference!r} has Python {version[0]}.{version[1]} as {python!r}; 3.6 is the oldest that will do"
        )


def check_contract(image: PinnedImage, python: str) -> None:
    """Run it. Raises ContainerError."""
    with tempfile.TemporaryDirectory(prefix="slipway-image-") as place:
        argv = contract_argv(image, python, (os.geteuid(), os.getegid()), limits_here(), labels_here(), place)
        judge_contract(image, python, ask(argv, IMAGE_CHECK_S))


def labels_here() -> tuple[tuple[str, str], ...]:
    """Of a container that belongs to no run but to this process, and is removed by the next reaping after that has ended."""
    holder = holder_of(os.getpid(), "local", str(os.getpid()), 0)
    job = f"{holder.scheduler}:{holder.job_id}:{holder.restart_count}"
    return (TAG, CHECK), (JOB, job), (USER, str(os.geteuid())), (HOLDER, json.dumps(holder.to_json(), sort_keys=True))
