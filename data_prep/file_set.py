"""Read the manifest of a set of files with the hashes of their chunks: a dataset, or a single file with its list of chunks beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from base import chunks, errors, humanize, jsonfile, typed
from data_prep.hashing import ChunkedFile, require
from data_prep.manifest import FILE_NAME, digest_of, manifest_as, manifest_of
from data_prep.sequences.manifest import SCHEMA as SEQUENCES_SCHEMA
from data_prep.sequences.manifest import SequenceManifest
from data_prep.tree.manifest import SCHEMA as TREE_SCHEMA
from data_prep.tree.manifest import TreeManifest

JOURNAL_NAME: Final = "staging.journal"


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
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema == chunks.SCHEMA:
        return _single(plain, content, where)
    files: Sequence[ChunkedFile]
    if schema == TREE_SCHEMA:
        files = manifest_as(TreeManifest, plain, where).files
    elif schema == SEQUENCES_SCHEMA:
        files = manifest_as(SequenceManifest, plain, where).shards
    else:
        files = manifest_of(plain, where).shards
    return FileSet(kind="dataset", content=content, digest=digest_of(content), files=files, in_place=schema == TREE_SCHEMA)


def parse_chunk_list(content: bytes, where: str) -> FileSet:
    """Parse the bytes of a `.chunks.json`; `where` starts the error message. Raises DatasetError."""
    return _single(jsonfile.parse_json(content, where, errors.DatasetError), content, where)


def _single(plain: Any, content: bytes, where: str) -> FileSet:
    file = typed.read_as(_SingleFile, plain, f"{where} is not a list of a file's chunks", errors.DatasetError)
    return FileSet(kind="file", content=content, digest=digest_of(content), files=(file,))
