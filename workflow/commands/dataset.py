"""`slipway dataset info|verify|stage`."""

from __future__ import annotations

from pathlib import Path

from base.errors import ConfigError
from base.logs import private_umask
from base.units import and_more, counted, format_duration, format_size
from cluster.schedulers import local
from data_prep.limits import RECHECK_S
from data_prep.manifest import Manifest, manifest_digest, read_manifest, verify_dataset
from data_prep.sequences.manifest import is_sequences, verify_sequences
from data_prep.staging import StageOptions, stage
from data_prep.staging.copy import CopyOptions
from data_prep.tree.manifest import is_tree
from data_prep.tree.verify import verify_tree
from workflow.commands import dataset_sequences, dataset_tree
from workflow.commands.datasets import dataset_and_site, dataset_root
from workflow.commands.watching import show
from workflow.commands.watching.progress import progress
from workflow.run.node.caches import cache_here

MAX_CLASSES = 20
MAX_REJECTED = 20


def info(study: Path, site: str | None, name: str, as_json: bool) -> None:
    """Print what the manifest says."""
    root = dataset_root(study, site, name)
    if is_tree(root):
        dataset_tree.info(root, as_json)
        return
    if is_sequences(root):
        dataset_sequences.info(root, as_json)
        return
    manifest = read_manifest(root)
    if as_json:
        value = manifest.to_json()
        value["shards"] = [{key: item for key, item in shard.items() if key != "chunks"} for shard in value["shards"]]
        show.json_value({**value, "digest": manifest_digest(root), "root": str(root)})
        return
    _print(root, manifest)


def verify(study: Path, site: str | None, name: str) -> None:
    """Hash everything. Raises DigestMismatch, naming every chunk that differs."""
    root = dataset_root(study, site, name)
    if is_tree(root):
        with progress(f"verify {root.name}") as callback:
            tree, place = verify_tree(root, callback)
        files = counted(len(tree.files), "file")
        show.line(f"{place}: {files}, {format_size(tree.bytes)}, every chunk is what the manifest in {root} promises")
        return
    with progress(f"verify {root.name}") as callback:
        manifest = verify_sequences(root, callback) if is_sequences(root) else verify_dataset(root, callback)
    show.line(f"{root}: {counted(manifest.samples, 'sample')}, {format_size(manifest.bytes)}, every chunk is what the manifest promises")


def stage_here(study: Path, site_name: str | None, name: str, node: int) -> None:
    """Stage into this node's cache: with the local scheduler that of node `node`."""
    root, site = dataset_and_site(study, site_name, name)
    if node and site.scheduler != "local":
        raise ConfigError(
            f"--node {node}: site {site.name!r} has scheduler {site.scheduler}, and its nodes are machines: run this on the node"
        )
    private_umask(group=site.shared == "group")
    cache = cache_here(site) / f"{local.NAME}-{node}" if site.scheduler == "local" else cache_here(site)
    rate = site.storage_limit.bytes_per_s if site.storage_limit else None
    check_s = RECHECK_S if site.cache.check_s is None else site.cache.check_s
    options = StageOptions(copy=CopyOptions(bytes_per_s=rate), check_s=check_s, group=site.shared == "group")
    with progress(f"stage {root.name}") as callback:
        staged = stage(root, cache, max_bytes=site.cache.max_bytes, progress=callback, options=options)
    anew = f"was there already, {format_size(staged.checked_bytes)} of it hashed anew"
    how = anew if staged.hit else f"{format_size(staged.copied_bytes)} copied in {format_duration(staged.seconds)}"
    if staged.resumed_bytes:
        how += f", {format_size(staged.resumed_bytes)} left by an interrupted copy"
    show.line(f"{staged.root}: {how}")


def _print(root: Path, manifest: Manifest) -> None:
    size = f"{manifest.size[0]}x{manifest.size[1]}" if manifest.size else "different sizes"
    show.line(f"{manifest.name}: {counted(manifest.samples, 'sample')}, {format_size(manifest.bytes)}, digest {manifest_digest(root)[:12]}")
    show.line(f"  in      {root}")
    show.line(f"  images  {size}, {counted(manifest.channels, 'channel')}, {manifest.encoding}, {manifest.layout}")
    show.line(f"  mean    {', '.join(f'{value:.4g}' for value in manifest.mean)}  (of train, 0 to 255)")
    show.line(f"  std     {', '.join(f'{value:.4g}' for value in manifest.std)}")
    show.line("  source")
    show.mapping(manifest.source, "    ")
    show.line()
    splits = sorted(manifest.splits.items())
    show.table(("split", "samples", "shards", "bytes"), [
        (name, split.samples, len(split.shards), format_size(sum(manifest.shards[index].bytes for index in split.shards)))
        for name, split in splits
    ])  # fmt: skip
    show.line()
    rows = [(name, *(split.class_counts[index] for _, split in splits)) for index, name in enumerate(manifest.classes)]
    show.table(("class", *(name for name, _ in splits)), rows[:MAX_CLASSES])
    if more := and_more(len(rows), MAX_CLASSES, "classes"):
        show.line(f"... {more}; --json lists all")
    if manifest.left_out_classes:
        show.line(f"\nleft out, since they have too few samples: {', '.join(manifest.left_out_classes)}")
    if manifest.rejected_count:
        show.line(f"\nrejected: {manifest.rejected_count}")
        for entry in manifest.rejected[:MAX_REJECTED]:
            show.line(f"  {entry['name']}: {entry['reason']}")
        if more := and_more(manifest.rejected_count, MAX_REJECTED):
            show.line(f"  ... {more}; --json lists those in the manifest")
