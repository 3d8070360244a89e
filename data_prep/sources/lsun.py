"""Read LSUN as it is published: one LMDB per category and set, such as `bedroom_train_lmdb/`, with a key and an image file per image."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from base.errors import DatasetError
from data_prep.sources.lmdb_file import LmdbReader, data_file, entries, listed
from data_prep.sources.naming import printable
from data_prep.sources.types import ListedSample, Prepared, Refused, Root

VALUES: Final = "image"
NAME: Final = re.compile(r"(?P<category>.+?)(?:_(?P<set>train|val))?(?:_lmdb)?")
TRAIN: Final = "train"
SPLITS: Final = {TRAIN: TRAIN, "val": "validation"}
WITHOUT_CLASS: Final = frozenset({"test", "test_lmdb"})
"""The images of LSUN's contest, whose categories were never published."""


def prepare(root: Root) -> Prepared:
    """Find the LMDBs; each is a class, and maybe of a split."""
    folders = [root.path] if data_file(root.path) else sorted(root.path.iterdir()) if root.path.is_dir() else []
    found = [folder for folder in folders if folder.is_dir() and data_file(folder)]
    if not found:
        raise DatasetError(
            f"{root.path} holds no LMDB: source: lsun wants the directory with bedroom_train_lmdb/data.mdb and the like, unpacked"
        )
    parts = [_part(folder) for folder in found]
    if not set(SPLITS.values()) <= {part["split"] for part in parts}:  # of train alone, fractions may be split off
        parts = [{**part, "split": None} for part in parts]
    trained = {part["class"] for part in parts if part["split"] in (None, TRAIN)}
    parts = [{**part, "untrained": part["class"] not in trained} for part in parts]
    return Prepared(files=tuple(folder / "data.mdb" for folder in found), facts={"parts": parts})


def scan(root: Root, prepared: Prepared) -> Iterator[ListedSample | Refused]:
    """List one sample per key; classes are the categories."""
    for number, (part, path) in enumerate(zip(prepared.facts["parts"], prepared.files, strict=True)):
        if part["folder"] in WITHOUT_CLASS:
            yield Refused(part["folder"], "images without a category")
            continue
        if part["untrained"]:
            yield Refused(part["folder"], f"{part['class']} has no training set ({part['class']}_{TRAIN}_lmdb)")
            continue
        for entry in entries(path, VALUES):
            if isinstance(entry, Refused):
                yield entry
                continue
            yield listed(entry, part["class"], root.whole or part["split"], number, f"{part['folder']}/")


def open_reader(_root: Root, prepared: Prepared) -> LmdbReader:
    """Open a reader, which starts a child process."""
    return LmdbReader(prepared.files)


def _part(folder: Path) -> dict[str, object]:
    name = printable(folder.name)
    match = NAME.fullmatch(name)
    category, of_set = (match["category"], match["set"]) if match else (name, None)
    return {"folder": name, "class": category, "split": SPLITS.get(of_set or "")}
