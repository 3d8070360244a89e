"""What `slipway dataset info` says of token sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from base.logs import printable
from base.units import and_more, counted, format_size
from data_prep.manifest import manifest_digest
from data_prep.sequences.manifest import padding, read_sequence_manifest
from workflow.commands.watching import show

MOST_REJECTED: Final = 20
MOST_WORDS: Final = 10


def info(root: Path, as_json: bool) -> None:
    """Print what the manifest says."""
    manifest, digest = read_sequence_manifest(root), manifest_digest(root)
    if as_json:
        value = manifest.to_json()
        value["shards"] = [{key: item for key, item in shard.items() if key != "chunks"} for shard in value["shards"]]
        show.json_value({**value, "digest": digest, "root": str(root)})
        return
    show.line(
        f"{manifest.name}: {counted(manifest.samples, 'sequence')}, {counted(manifest.tokens, 'token')} to learn, "
        f"{format_size(manifest.bytes)}, digest {digest[:12]}"
    )
    show.line(f"  in          {root}")
    words = "" if manifest.words is None else f": {', '.join(map(printable, manifest.words[:MOST_WORDS]))}, ..."
    show.line(f"  vocabulary  {manifest.vocabulary}{words}")
    show.line("  source")
    show.mapping(manifest.source, "    ")
    show.line()
    show.table(("split", "length", "sequences", "tokens", "padding"), [
        (split, length, samples, tokens, f"{padding({length: (samples, tokens)}):.1%}")
        for split in sorted(manifest.splits)
        for length, (samples, tokens) in manifest.groups(split).items()
    ])  # fmt: skip
    for split in sorted(manifest.splits):
        show.line(f"padding of {split} in all: {padding(manifest.groups(split)):.1%}")
    if manifest.rejected_count:
        show.line(f"\nrejected: {manifest.rejected_count}")
        for entry in manifest.rejected[:MOST_REJECTED]:
            show.line(f"  {entry['name']}: {entry['reason']}")
        if more := and_more(manifest.rejected_count, MOST_REJECTED):
            show.line(f"  ... {more}; --json lists those in the manifest")
