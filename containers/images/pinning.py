"""Pull, convert and pin an image, once, when a study starts: a tag becomes what it means now, and our programs must run in it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from base.errors import ConfigError, ContainerError, UnsupportedRequest
from base.humanize import choices
from base.process import CommandResult, describe, last_lines
from base.publish import publish_file
from cluster.holder import holder_of
from containers import node_facts, spec
from containers.engines import ENGINES, STORES, in_container
from containers.engines.enroot import OWN, RC, client_argv
from containers.images.commands import ask, find, pull_argv
from containers.images.model import FILES, MACHINES, SIF, SQSH, SUFFIXES, PinnedImage
from containers.limits import IMAGE_CHECK_S, IMAGE_PULL_S

# Images that are one file, which is image and archive in one, so that pinning is hashing and loading is copying.
#
# Apptainer's are SIF files, which its `build` makes of what a registry, a daemon or an archive has; enroot's are squashfs files, which its
# `import` makes of what a registry or a daemon of this machine has. Pyxis starts those of enroot.


FROM_APPTAINER: Final = ("docker://", "oras://", "library://", "docker-archive:", "oci-archive:", "docker-daemon:")
FROM_ENROOT: Final = ("docker://", "dockerd://", "podman://")
ARCHIVE: Final = "docker-archive:"
CREDENTIALS: Final = ".credentials"


@dataclass(frozen=True, kw_only=True)
class FileEngine:
    """What an engine does whose images are files."""

    form: str
    make_argv: Callable[[Path, str, Path | None], list[str]]
    """(the file to make, what it is made of, the user's credentials); its directory is ours alone and removed later. Raises
    ContainerError."""
    run_argv: Callable[[str, tuple[str, ...], str], list[str]]
    """(the file of the image, a command, an empty directory to use): run it in the image, with nothing of this machine."""


def apptainer_build_argv(target: Path, reference: str, credentials: Path | None = None) -> list[str]:
    """Return the command that makes a SIF. A reference without a scheme is one of a registry, as for docker."""
    source = reference if reference.startswith(FROM_APPTAINER) else f"docker://{reference}"
    return ["apptainer", "build", *(["--authfile", str(credentials)] if credentials else []), str(target), source]


def enroot_uri(reference: str) -> str:
    """Return the reference as enroot writes it. One without a scheme is of a registry, whose name ends with # there."""
    if reference.startswith(FROM_ENROOT):
        return reference
    host, slash, rest = reference.partition("/")
    is_host = slash and ("." in host or ":" in host or host == "localhost")
    return f"docker://{host}#{rest}" if is_host else f"docker://{reference}"


def enroot_import_argv(target: Path, reference: str, credentials: Path | None = None) -> list[str]:
    """Return the command that makes a squashfs file. Its caches are the user's own, and without `credentials`, which are in the form of
    netrc, so is its configuration, where it finds those. Raises ContainerError.
    """
    if reference.startswith(ARCHIVE):
        file = reference.removeprefix(ARCHIVE)
        raise ContainerError(
            f"image {reference!r}: enroot reads no archive of `docker save`; load it (`podman load --input {file}`, or docker's), and name "
            "podman://IMAGE or dockerd://IMAGE"
        )
    place = target.parent
    if credentials is not None:
        (place / CREDENTIALS).symlink_to(credentials.absolute())
    places = {"RUNTIME": place, **({} if credentials is None else {"CONFIG": place})}
    settings = (f"ENROOT_{name}_PATH={path}" for name, path in places.items())
    return ["env", *settings, "enroot", "import", "--output", str(target), enroot_uri(reference)]


def _enroot_start_argv(source: str, command: tuple[str, ...], place: str) -> list[str]:
    name, text = RC
    Path(place, name).write_text(text)
    return [*client_argv(f"{place}/{OWN}"), "start", "--rc", f"{place}/{name}", "--env", "NVIDIA_VISIBLE_DEVICES=void", source, *command]


_ENROOT: Final = FileEngine(form=SQSH, make_argv=enroot_import_argv, run_argv=_enroot_start_argv)
FILE_ENGINES: Final = {
    "apptainer": FileEngine(
        form=SIF,
        make_argv=apptainer_build_argv,
        run_argv=lambda source, command, _: ["apptainer", "exec", "--containall", "--cleanenv", source, *command],
    ),
    "enroot": _ENROOT,
    "pyxis": _ENROOT,
}


def suffix_of(engine: str) -> str:
    """Return the suffix of the files of an engine, such as `.sif`."""
    return SUFFIXES[FILE_ENGINES[engine].form]


def pin_file(reference: str, engine: str, *, pull: str, credentials: Path | None, scratch: Path | None) -> PinnedImage:
    """Pin a file as it is, or make one in `scratch`, where it stays: to make it again would give other bytes. Raises ContainerError."""
    suffix = suffix_of(engine)
    if reference.endswith(suffix):
        return _pinned_file(reference, engine, Path(reference))
    place = scratch or Path.home() / ".cache" / "slipway" / suffix[1:]
    file = place / (hashlib.sha256(reference.encode()).hexdigest()[:12] + suffix)
    if pull == "always" or not file.exists():
        if pull == "never":
            raise ContainerError(f"image {reference!r} was not built here, and nothing may be pulled here: name a {suffix} file")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(reference, engine, file, credentials)
    return _pinned_file(reference, engine, file)


def _make(reference: str, engine: str, target: Path, credentials: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        part = Path(directory, f"image{target.suffix}")
        result = ask(FILE_ENGINES[engine].make_argv(part, reference, credentials), IMAGE_PULL_S)
        if result.returncode or not part.is_file():
            raise ContainerError(f"image {reference!r} cannot be made a {target.suffix} file: {describe(result)}")
        publish_file(part, target)


def _pinned_file(reference: str, engine: str, file: Path) -> PinnedImage:
    try:
        with file.open("rb") as opened:
            digest = "sha256:" + hashlib.file_digest(opened, "sha256").hexdigest()
        size = file.stat().st_size
    except OSError as error:
        raise ContainerError(f"image {reference!r}: {file} cannot be read: {error.strerror}") from error
    machine = platform.machine()  # these engines run only images of its kind without more
    return PinnedImage(
        reference=reference,
        engine=engine,
        digest=digest,
        image_id=digest,
        platform=f"linux/{MACHINES.get(machine, machine)}",
        size_bytes=size,
        form=FILE_ENGINES[engine].form,
        source=str(file.absolute()),
    )


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
    if credentials is not None and engine == "docker" and credentials.name != "config.json":
        raise ConfigError(f"docker reads credentials from a file config.json alone: {str(credentials)!r} has another name")
    if not in_container(engine):
        raise UnsupportedRequest(f"engine {engine!r} has no images; {choices(engine, filter(in_container, ENGINES))}")
    if engine not in STORES:
        return pin_file(reference, engine, pull=pull, credentials=credentials, scratch=scratch)
    found = None if pull == "always" else find(engine, reference)
    if found is None and pull != "never":
        _fetch(reference, engine, credentials)
        found = find(engine, reference)
    if found is None:
        never = ", and nothing may be pulled here: `make image` builds it, or name another" if pull == "never" else ""
        raise ContainerError(f"image {reference!r} is not known to {engine} on this machine{never}")
    return found


def _fetch(reference: str, engine: str, credentials: Path | None) -> None:
    result = ask(pull_argv(engine, reference, credentials), IMAGE_PULL_S)
    if result.returncode == 0:
        return
    words = last_lines(result.stderr, 1)  # before it podman reports each of its tries
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
        argv = contract_argv(image, python, (os.geteuid(), os.getegid()), node_facts.limits_here(), labels_here(), place)
        judge_contract(image, python, ask(argv, IMAGE_CHECK_S))


def labels_here() -> tuple[tuple[str, str], ...]:
    """Return the labels of a container that belongs to no run but to this process, and is removed by the next reaping after that has
    ended."""
    holder = holder_of(os.getpid(), "local", str(os.getpid()), 0)
    job = f"{holder.scheduler}:{holder.job_id}:{holder.restart_count}"
    return (spec.TAG, CHECK), (spec.JOB, job), (spec.USER, str(os.geteuid())), (spec.HOLDER, json.dumps(asdict(holder), sort_keys=True))
