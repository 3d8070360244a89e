"""Put the parts together: the manifest of a tree and the place it lies at, published, and last `dataset.json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from base.chunks import CHUNK_BYTES
from base.errors import DatasetError
from base.publish import publish_directory
from data_prep.build.dataset_file import DATASET_FILE, BuiltDataset, read_dataset_file, write_dataset_file
from data_prep.build.locks import held, own_part, publish_json_of, remove_all_dead_parts, remove_dead_parts
from data_prep.build.receipt import not_older
from data_prep.manifest import FILE_NAME, Progress, digest_of, manifest_digest
from data_prep.tree.hashing import hash_part
from data_prep.tree.listing import list_tree
from data_prep.tree.manifest import PLACE_NAME, Place, TreeFile, TreeManifest, to_bytes
from data_prep.tree.names import advice_of
from data_prep.tree.plan import TreePlan, read_tree_plan


def finish_tree(build_dir: Path, datasets_dir: Path, progress: Progress | None = None) -> BuiltDataset:
    """Publish `datasets_dir/<name>-<digest12>/` and write `build_dir/dataset.json`. A part that is missing is hashed here. Raises
    DatasetError, also where the tree is not what it was when it was listed; StorageError."""
    with held(build_dir / "locks" / "finish"):
        plan = read_tree_plan(build_dir)
        chunks = []
        for index in range(plan.parts):
            chunks.append(hash_part(build_dir, index).chunks)
            if progress is not None:
                progress(index + 1, plan.parts)
        if changes := plan.changes(list_tree(Path(plan.path))):
            raise DatasetError(f"{plan.path} has changed since it was listed: {changes}; {advice_of(plan.name)}")
        manifest = TreeManifest(name=plan.name, bytes=plan.bytes, files=tuple(_files(plan, chunks)))
        content = to_bytes(manifest)
        digest = digest_of(content)
        target = datasets_dir / f"{plan.name}-{digest[:12]}"
        _publish(target, content, digest, Place(path=plan.root, links={file.name: file.at for file in plan.files if file.at is not None}))
        built = BuiltDataset(name=plan.name, digest=digest, path=target.name, samples=None, bytes=manifest.bytes, spec12=plan.spec12)
        if not _is_written(build_dir, built):
            write_dataset_file(build_dir, built)
        remove_all_dead_parts(build_dir)
        return built


def _files(plan: TreePlan, chunks: Sequence[Sequence[str]]) -> Iterator[TreeFile]:
    left = chain.from_iterable(chunks)
    for file in plan.files:
        own = tuple(next(left) for _ in range(-(-file.bytes // CHUNK_BYTES)))
        yield TreeFile(name=file.name, bytes=file.bytes, chunk_bytes=CHUNK_BYTES, chunks=own)


def _publish(target: Path, content: bytes, digest: str, place: Place) -> None:
    """The same files may lie at two places: what is read is the place that was looked at last."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_dead_parts(target)
    with own_part(target) as part:
        manifest = part / FILE_NAME
        manifest.write_bytes(content)
        manifest.chmod(0o444)
        publish_json_of(part / PLACE_NAME, asdict(place))
        is_new = publish_directory(part, target)
    if manifest_digest(target) != digest:
        raise DatasetError(f"{target} is there already and holds another dataset; remove it and run again")
    if not is_new:
        publish_json_of(target / PLACE_NAME, asdict(place))


def _is_written(build_dir: Path, built: BuiltDataset) -> bool:
    """Whether dataset.json says so already: then it only must not be older than what it is made of."""
    if not (build_dir / DATASET_FILE).exists():
        return False
    for receipt in build_dir.glob("shard-*.json"):
        not_older(build_dir / DATASET_FILE, receipt)
    return read_dataset_file(build_dir) == built
