"""Answer in JSON what `slipway remote` asks of the cluster, for `slipway remote-end`.

Nobody types it; the rest `slipway remote` does by the ordinary commands.
"""

import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from base import VERSION
from base.errors import ConfigError, RemoteError, StorageError
from base.logs import private_umask
from base.publish import publish_directory, remove_tree
from base.system import now_at
from extras.remote import asking
from extras.remote.asking import FILES, PROTOCOL, TREES, Have, Hello, Placed, Results, is_result
from extras.remote.bundle import digest_of
from workflow.commands.chosen_study import load_chosen_study
from workflow.commands.options import SiteOption
from workflow.commands.watching import output
from workflow.study import publishing, site_file

COMES_DOWN: Final = (*FILES, *(f"{tree}/**/*" for tree in TREES))
OLD_S: Final = 86400.0


def main(verb: str, words: Annotated[list[str] | None, typer.Argument()] = None, site: SiteOption = None) -> None:
    """Answer what `slipway remote` asks of the cluster."""
    match (verb, *(words or ())):
        case ("hello", program):
            hello(program)
        case ("have", source, digest):
            have(source, digest, site)
        case ("place", source, digest, incoming):
            accept_version(source, digest, Path(incoming), site)
        case ("results", study):
            results(Path(study), site)
        case _:
            raise typer.BadParameter(f"{verb} with {len(words or ())} words is not known to Slipway {VERSION}")


def hello(program: str) -> None:
    """Print who answers, started as `program`, which may be a script of the site's around ours."""
    _answer(Hello(version=VERSION, host=os.uname().nodename, program=os.path.abspath(program)))


def have(source: str, digest: str, site: str | None) -> None:
    """Print whether this version of a study is there, and where it is to be put if not."""
    target = _version_dir(source, digest, site)
    there = target.is_dir()
    incoming = target.parent / f".{digest}.part-{secrets.token_hex(6)}"
    if not there:
        _sweep(target.parent, digest)
    _answer(Have(place=str(target), there=there, incoming=str(incoming)))


def accept_version(source: str, digest: str, incoming: Path, site: str | None) -> None:
    """Give what has come its name, if it is whole. Raises RemoteError if it is not; it is removed then."""
    target = _version_dir(source, digest, site)
    if target.is_dir():
        remove_tree(incoming)
    else:
        found = digest_of(incoming)
        if found != digest:
            remove_tree(incoming)
            raise RemoteError(f"{incoming}: what came has the digest {found}, and {digest} was sent; the same command sends it again")
        publish_directory(incoming, target)
    _answer(Placed(place=str(target)))


def results(path: Path, site: str | None) -> None:
    """Print the files of a study's results that come down: path below the results, size, digest."""
    study = load_chosen_study(path, site)
    root = study.results_dir
    files = [asking.described(root, name) for name in sorted(set(_names(root)))]
    _answer(Results(results=str(root), files=tuple(file for file in files if file)))


def _answer(answer: Hello | Have | Placed | Results) -> None:
    output.json_value({"protocol": PROTOCOL, **asdict(answer)})


def _version_dir(source: str, digest: str, site: str | None) -> Path:
    """Raise ConfigError for what names no version of a study, StorageError where storage cannot be written."""
    if "/" in source or source.startswith(".") or not digest.isalnum():
        raise ConfigError(f"{source!r}, {digest!r}: no study that `slipway remote` brings")
    chosen = site_file.load_site(site)
    private_umask(group=chosen.shared == "group")
    target = publishing.version_dir(chosen.storage, source, digest)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"site {chosen.name}: {error.filename}: {error.strerror}: the study could not be put there") from error
    return target


def _sweep(directory: Path, digest: str) -> None:
    """Remove what came of this version long ago, before a cut; whoever sends the same at the same time is left alone."""
    for part in directory.glob(f".{digest}.part-*"):
        if now_at(directory) - part.lstat().st_mtime > OLD_S:
            remove_tree(part)


def _names(root: Path) -> Iterator[str]:
    for pattern in COMES_DOWN:
        for path in root.glob(pattern):
            name = path.relative_to(root).as_posix()
            if is_result(name) and path.is_file() and not path.is_symlink():
                yield name
