"""Hash a tree again and compare it with its manifest: where it lies on storage, or a staged copy of it."""

from __future__ import annotations

from pathlib import Path

from base.errors import DigestMismatch
from base.units import some
from data_prep.manifest import Progress, chunk_problems, name_problems
from data_prep.sources.naming import printable
from data_prep.tree.manifest import FOLDER, TreeManifest, read_place, read_tree_manifest
from data_prep.tree.names import advice_of

_SHOWN = 20


def verify_tree(root: Path, progress: Progress | None = None) -> tuple[TreeManifest, Path]:
    """Read everything once, from where it lies and not from this machine's memory; `progress(bytes done, bytes in all)`. Returns the
    manifest, and where the files lie. Raises DatasetError when there is no valid manifest, DigestMismatch naming every file and chunk that
    is not what the manifest promises."""
    manifest = read_tree_manifest(root)
    place = None if (root / FOLDER).is_dir() else read_place(root)
    problems, done = name_problems(root), 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, manifest.bytes)

    for file in manifest.files:
        path = root / file.path if place is None else place.of(file)
        problems += [f"{printable(file.name)}: {problem}" for problem in chunk_problems(path, file, advance)]
    where = root if place is None else Path(place.path)
    if problems:
        what = "remove it and fetch it again" if place is None else advice_of(manifest.name)
        listed = some(problems, _SHOWN, "\n")
        raise DigestMismatch(f"{where} is not what its manifest promises:\n{listed}\n{what}")
    return manifest, where
