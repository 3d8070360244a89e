"""A tag becomes what it means now, once, when a study starts: the tag may move, the study does not."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Final, Literal

from base.command import last_lines
from base.errors import ConfigError, ContainerError, UnsupportedRequest
from base.names import choices
from containers.engines import ENGINES, STORES, in_container
from containers.images import files
from containers.images.commands import ask, find, pull_argv
from containers.images.model import PinnedImage
from containers.limits import IMAGE_PULL_S

Pull = Literal["missing", "always", "never"]
_DENIED: Final = ("unauthorized", "denied", "authentication required", "no basic auth")


def pin(
    reference: str, engine: str, *, pull: Pull = "missing", credentials: Path | None = None, scratch: Path | None = None
) -> PinnedImage:
    """What `reference` is for `engine` on this machine, fetched from its registry where it is not here (or `pull` says always).

    `credentials`: the user's own file (docker's config.json, podman's auth.json, enroot's .credentials); by default the one that the
    engine finds itself. Its content is never read by us. `scratch`: where an image that is a file is made. Raises ContainerError,
    ConfigError, UnsupportedRequest.
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
    """REPOSITORY@DIGEST; None for an image that came from no registry."""
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
