"""Pin an image: a tag becomes what it means now, once, when a study starts, and our programs must be able to run in it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, Literal

from base.errors import ConfigError, ContainerError, UnsupportedRequest
from base.humanize import choices
from base.process import CommandResult, last_lines
from cluster.holder import holder_of
from containers.engines import ENGINES, STORES, in_container
from containers.images import files
from containers.images.commands import ask, find, pull_argv
from containers.images.files import FILE_ENGINES
from containers.images.model import FILES, PinnedImage
from containers.labels import HOLDER, JOB, TAG, USER
from containers.limits import IMAGE_CHECK_S, IMAGE_PULL_S
from containers.node_facts import limits_here

Pull = Literal["missing", "always", "never"]
_DENIED: Final = ("unauthorized", "denied", "authentication required", "no basic auth")


def pin(
    reference: str, engine: str, *, pull: Pull = "missing", credentials: Path | None = None, scratch: Path | None = None
) -> PinnedImage:
    """Pin what `reference` is for `engine` on this machine, fetched from its registry where it is not here (or `pull` says always).

    `credentials`: the user's own file (docker's config.json, podman's auth.json, enroot's .credentials); by default the one that the engine
    finds itself. Its content is never read by us. `scratch`: where an image that is a file is made. Raises ContainerError, ConfigError,
    UnsupportedRequest.
    """
    if reference.startswith("-") or not reference.strip() or any(character.isspace() for character in reference):
        raise ConfigError(f"image: found {reference!r}; valid: REPOSITORY:TAG, REPOSITORY@sha256:..., or a path of a .sif or .sqsh file")
    if credentials is not None and not credentials.is_file():
        raise ConfigError(f"the file of registry credentials {str(credentials)!r} is not there; `{engine} login` writes one")
    if not in_container(engine):
        raise UnsupportedRequest(f"engine {engine!r} has no images; {choices(engine, filter(in_container, ENGINES))}")
    if engine not in STORES:
        return files.pin(reference, engine, pull=pull, credentials=credentials, scratch=scratch)
    found = None if pull == "always" else find(engine, reference)
    if found is None and pull != "never":
        _fetch(reference, engine, credentials)
        found = find(engine, reference)
    if found is None:
        raise ContainerError(f"image {reference!r} is not known to {engine} on this machine{_never(pull)}")
    return found


def by_digest(image: PinnedImage) -> str | None:
    """Return REPOSITORY@DIGEST; None for an image that came from no registry."""
    if image.digest == image.image_id:
        return None
    name = image.reference.partition("@")[0]
    repository, _, last = name.rpartition("/")
    return f"{repository}{'/' if repository else ''}{last.partition(':')[0]}@{image.digest}"


def _never(pull: Pull) -> str:
    return ", and nothing may be pulled here: `make image` builds it, or name another" if pull == "never" else ""


def _fetch(reference: str, engine: str, credentials: Path | None) -> None:
    with nullcontext() if credentials is None else STORES[engine].credentials(credentials) as place:
        result = ask(pull_argv(engine, reference, place), IMAGE_PULL_S)
    if result.returncode == 0:
        return
    words = last_lines(result.stderr, 3)
    advice = "is it the image you mean (`images` in the site file)? `make image` builds ours, BASE=... from an image that is here"
    if any(word in words.lower() for word in _DENIED):
        how = (
            f"by {credentials}, which `{engine} login` writes"
            if credentials
            else f"`{engine} login`, or `registry_credentials` in the site file"
        )
        advice = f"does the registry know you ({how})? {advice}"
    raise ContainerError(f"image {reference!r} is not on this machine, and {engine} cannot pull it: {words}; {advice}")


# Whether our programs can run in an image at all: asked where it is archived, in seconds, before anybody waits in a queue for it.


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
    """Return the command that runs the interpreter as `user` (uid, gid), without network, rights or a writable root. `limits`: as of a run;
    an engine's own may be more than we may have. `labels`: what it is found by, should its client be killed. `place`: an empty directory of
    ours.
    """
    if image.form in FILES:
        return FILE_ENGINES[image.engine].run_argv(image.source, (python, "-c", PROGRAM), place)
    rights = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only"]
    rights += ["--user", "{}:{}".format(*user), "--env", "HOME=/tmp"]
    ours = [word for name, most in limits for word in ("--ulimit", f"{name}={most}:{most}")]
    named = [word for name, value in labels for word in ("--label", f"{name}={value}")]
    start = [image.engine, "run", "--rm", *named, "--network", "none", *ours, *rights, "--entrypoint", python]
    return [*start, image.image_id.removeprefix("sha256:"), "-c", PROGRAM]


def judge_contract(image: PinnedImage, python: str, result: CommandResult) -> None:
    """Raise ContainerError unless the interpreter ran and is new enough."""
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
    """Run the image's interpreter, and judge it. Raises ContainerError."""
    with tempfile.TemporaryDirectory(prefix="slipway-image-") as place:
        argv = contract_argv(image, python, (os.geteuid(), os.getegid()), limits_here(), labels_here(), place)
        judge_contract(image, python, ask(argv, IMAGE_CHECK_S))


def labels_here() -> tuple[tuple[str, str], ...]:
    """Return the labels of a container that belongs to no run but to this process, and is removed by the next reaping after that has
    ended."""
    holder = holder_of(os.getpid(), "local", str(os.getpid()), 0)
    job = f"{holder.scheduler}:{holder.job_id}:{holder.restart_count}"
    return (TAG, CHECK), (JOB, job), (USER, str(os.geteuid())), (HOLDER, json.dumps(holder.to_json(), sort_keys=True))
