"""Read the manifest of a set of files with the hashes of their chunks: a dataset, or a single file with its list of chunks beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from base import chunks, errors, humanize, jsonfile, typed
from data_prep.hashing import ChunkedFile, require
from data_prep.manifest import FILE_NAME, Manifest, Progress, digest_of, manifest_as, read_bytes, silent, verify_files
from data_prep.sequences.manifest import SCHEMA as SEQUENCES_SCHEMA
from data_prep.sequences.manifest import SequenceManifest
from data_prep.tree.manifest import FOLDER, TreeManifest, advice_of, read_location
from data_prep.tree.manifest import SCHEMA as TREE_SCHEMA

JOURNAL_NAME: Final = "staging.journal"
DatasetManifest = Manifest | SequenceManifest | TreeManifest


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """A set of files to copy. `content` holds the bytes of its manifest, `digest` their hash."""

    kind: Literal["dataset", "file"]
    content: bytes
    digest: str
    files: Sequence[ChunkedFile]
    in_place: bool = False
    """True if the files do not lie beside the manifest on storage, as with a tree of files."""

    @cached_property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class _SingleFile(ChunkedFile):
    """The content of `<file>.chunks.json`."""

    schema: str

    def __post_init__(self) -> None:
        require(self.schema == chunks.SCHEMA, f"its schema is {self.schema!r}, this version of Slipway reads {chunks.SCHEMA!r}")
        require(humanize.is_name(self.name) and self.name not in (FILE_NAME, JOURNAL_NAME), f"{self.name!r} cannot be the name of the file")
        super().__post_init__()


def parse_file_set(content: bytes, where: str) -> FileSet:
    """Parse the bytes of a manifest or of a `.chunks.json`; `where` starts the error message. Raises DatasetError."""
    plain = jsonfile.parse_json(content, where, errors.DatasetError)
    if isinstance(plain, dict) and plain.get("schema") == chunks.SCHEMA:
        return _single(plain, content, where)
    manifest = _dataset(plain, where)
    is_tree = isinstance(manifest, TreeManifest)
    return FileSet(kind="dataset", content=content, digest=digest_of(content), files=files_of(manifest), in_place=is_tree)


def read_any_manifest(root: Path) -> DatasetManifest:
    """Read the manifest in the directory `root`, of whichever kind the dataset is. Raises DatasetError."""
    where = str(root / FILE_NAME)
    return _dataset(jsonfile.parse_json(read_bytes(root), where, errors.DatasetError), where)


def verify_dataset(root: Path, progress: Progress = silent) -> tuple[DatasetManifest, Path]:
    """Hash every file of the dataset in `root` again, from where it lies and not from this machine's memory; `progress(bytes done, bytes in
    all)`. Returns the manifest, and where the files lie.

    Raises DatasetError when there is no valid manifest, DigestMismatch naming every file and chunk that is not what the manifest promises.
    """
    manifest, where, advice = read_any_manifest(root), root, "remove it and build or fetch it again"
    files = [(root / file.path, file) for file in files_of(manifest)]
    if isinstance(manifest, TreeManifest) and not (root / FOLDER).is_dir():
        place = read_location(root)
        where, advice = Path(place.path), advice_of(manifest.name)
        files = [(place.of(file), file) for _, file in files]
    verify_files(root, files, progress, where, advice)
    return manifest, where


def _dataset(plain: Any, where: str) -> DatasetManifest:
    schema = plain.get("schema") if isinstance(plain, dict) else None
    kinds: dict[object, type[DatasetManifest]] = {TREE_SCHEMA: TreeManifest, SEQUENCES_SCHEMA: SequenceManifest}
    return manifest_as(kinds.get(str(schema), Manifest), plain, where)


def files_of(manifest: DatasetManifest) -> Sequence[ChunkedFile]:
    """Return the files of a dataset of any kind."""
    return manifest.files if isinstance(manifest, TreeManifest) else manifest.shards


def parse_chunk_list(content: bytes, where: str) -> FileSet:
    """Parse the bytes of a `.chunks.json`; `where` starts the error message. Raises DatasetError."""
    return _single(jsonfile.parse_json(content, where, errors.DatasetError), content, where)


def _single(plain: Any, content: bytes, where: str) -> FileSet:
    file = typed.read_as(_SingleFile, plain, f"{where} is not a list of a file's chunks", errors.DatasetError)
    return FileSet(kind="file", content=content, digest=digest_of(content), files=(file,))
