"""What `slipway dataset info` says of a tree of files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from base.logs import printable
from base.units import and_more, counted, format_size
from data_prep.manifest import manifest_digest
from data_prep.tree.manifest import FOLDER, read_place, read_tree_manifest
from workflow.commands.watching import show

MOST_FILES: Final = 40


def info(root: Path, as_json: bool) -> None:
    """Print what the manifest says, and where the files lie."""
    manifest, digest = read_tree_manifest(root), manifest_digest(root)
    place = str(root / FOLDER) if (root / FOLDER).is_dir() else read_place(root).path
    if as_json:
        files = [{"name": file.name, "bytes": file.bytes} for file in manifest.files]
        show.json_value({**manifest.to_json(), "files": files, "digest": digest, "root": str(root), "place": place})
        return
    show.line(f"{manifest.name}: {counted(len(manifest.files), 'file')}, {format_size(manifest.bytes)}, digest {digest[:12]}")
    show.line(f"  in      {place}")
    show.line(f"  listed  {root}")
    show.line()
    show.table(("file", "bytes"), [(printable(file.name), format_size(file.bytes)) for file in manifest.files[:MOST_FILES]])
    if more := and_more(len(manifest.files), MOST_FILES, "files"):
        show.line(f"... {more}; --json lists all")
