"""Ask docker and podman about images: argument lists and parsers of answers, pure; and one call with a limit.

By their command line: both have the same one, it reads the user's credentials and contexts as the user's own calls do, and a client that
hangs is a process that can be killed.
"""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired, TypedDict

from base.errors import ContainerError
from base.process import CommandResult, last_lines
from base.typed import Check, Count, json_as
from containers.engines import STORES, container_start
from containers.images.model import DOCKER_ARCHIVE, OCI_ARCHIVE, PinnedImage
from containers.limits import ENGINE_CALL_S

_OCI: Final = "application/vnd.oci.image.manifest.v1+json"
_UNKNOWN: Final = ("no such image", "image not known", "no such object")


class _Inspected(TypedDict):
    Id: str
    Os: Annotated[str, Check("a word", lambda value: re.fullmatch(r"[\w.-]{1,40}", value) is not None)]
    Architecture: Annotated[str, Check("a word", lambda value: re.fullmatch(r"[\w.-]{1,40}", value) is not None)]
    Size: Count
    RepoDigests: NotRequired[list[str] | None]
    ManifestType: NotRequired[Any]


def pull_argv(engine: str, reference: str, credentials: Path | None = None) -> list[str]:
    """Return the command that pulls an image."""
    return [engine, *STORES[engine].pull(reference, credentials)]


def save_argv(image: PinnedImage) -> list[str]:
    """Return the command that writes an image to standard output, by id: an archive that names no tag cannot move one where it is
    loaded."""
    return [image.engine, "save", *STORES[image.engine].save_format(image.form), image.image_id.removeprefix("sha256:")]


def parse_inspect(text: str, reference: str, engine: str) -> PinnedImage:
    """Read the answer to `image inspect`. Raises ContainerError."""
    try:
        found = json_as(list[_Inspected], text, "the answer", ContainerError)
        if not found:
            raise ContainerError("it is empty")
        image_id = "sha256:" + found[0]["Id"].removeprefix("sha256:")
        return PinnedImage(
            reference=reference,
            engine=engine,
            digest=_digest(reference, found[0].get("RepoDigests") or ()) or image_id,
            image_id=image_id,
            platform=f"{found[0]['Os']}/{found[0]['Architecture']}",
            size_bytes=found[0]["Size"],
            form=OCI_ARCHIVE if found[0].get("ManifestType") == _OCI else DOCKER_ARCHIVE,
        )
    except (ValueError, ContainerError) as error:
        raise ContainerError(f"{engine} described image {reference!r} in a way that cannot be read ({error}): {text[:300]!r}") from error


def _digest(reference: str, known: Sequence[str]) -> str | None:
    """Return the one of the repository asked for, else the first; podman invents some for what came from no registry."""
    pairs = [(name, digest) for name, _, digest in (word.partition("@") for word in known) if digest and not name.startswith("localhost/")]
    asked = reference.partition("@")[0]
    mine = [digest for name, digest in pairs if name.endswith(asked.rpartition(":")[0] if ":" in asked.rpartition("/")[2] else asked)]
    return next(iter(mine or [digest for _, digest in pairs]), None)


def why_silent(engine: str) -> str | None:
    """Return why the engine cannot be asked on this machine, or None if it answers."""
    if shutil.which(engine) is None:
        return f"{engine} is not on this machine's PATH"
    if engine not in STORES:
        return None
    try:
        result = container_start.call([engine, "info"])
    except ContainerError as error:
        return str(error)
    return f"{engine} does not answer here: {last_lines(result.stderr or result.stdout, 1)}" if result.returncode else None


def demand(argv: Sequence[str], timeout_s: float = ENGINE_CALL_S) -> str:
    """Return the output of a command. Raises ContainerError when it fails."""
    result = container_start.call(argv, timeout_s)
    if result.returncode:
        raise _failed(result)
    return result.stdout


def _failed(result: CommandResult) -> ContainerError:
    said = "; ".join(last_lines(result.stderr, 3).splitlines()) or "no word of why"
    ended = f"`{shlex.join(result.argv)}` ended with {result.returncode}"
    return ContainerError(f"{ended}: {said}; `slipway doctor` says which engines work here")


def find(engine: str, name: str) -> PinnedImage | None:
    """Return what the engine has under `name`, a tag or an id; None where it has nothing. Raises ContainerError."""
    result = container_start.call([engine, "image", "inspect", name])
    if result.returncode:
        if any(word in result.stderr.lower() for word in _UNKNOWN):
            return None
        raise _failed(result)
    return parse_inspect(result.stdout, name, engine)
