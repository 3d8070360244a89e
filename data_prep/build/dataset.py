"""Build a dataset in one call, as `slipway dataset build` does: plan, shards in parallel, finish. A killed build is continued."""

from __future__ import annotations

import os
from pathlib import Path

from base.publish import remove_tree
from data_prep.build.finish import finish_dataset
from data_prep.build.locks import remove_all_dead_parts
from data_prep.build.plan import plan_dataset
from data_prep.build.publishing import DATASET_FILE, BuiltDataset
from data_prep.build.shard import finished
from data_prep.build.workers import build_shards
from data_prep.manifest import Progress
from data_prep.sequences.shard import build_sequences
from data_prep.spec import DatasetSpec, spec12
from data_prep.tree.plan import build_tree


def build_dir_of(datasets_dir: Path, name: str, spec: DatasetSpec) -> Path:
    """Return the directory where a dataset is made, `<datasets>/.build/<name>-<spec12>`. `spec` is resolved."""
    return datasets_dir / ".build" / f"{name}-{spec12(spec)}"


def build_dataset(
    spec: DatasetSpec, name: str, datasets_dir: Path, jobs: int | None = None, progress: Progress | None = None, *, fresh: bool = False
) -> BuiltDataset:
    """Build the dataset of the resolved `spec`, or go on with it, or find it done. `fresh` forgets what an earlier call decided.

    `jobs` processes (default: the cores this process may use); `progress(samples done, samples in all)`, of a tree bytes, in all 0 while
    the source is listed. Raises ConfigError, DatasetError, NotEnoughSpace, StorageError.
    """
    build_dir = build_dir_of(datasets_dir, name, spec)
    if fresh:
        remove_tree(build_dir)
    if spec.has_sequences:
        return build_sequences(spec, name, build_dir, datasets_dir, jobs, progress)
    if not spec.has_images:
        return build_tree(spec, name, build_dir, datasets_dir, jobs, progress)
    plan = plan_dataset(spec, name, build_dir, progress and (lambda done, _total: progress(done, 0)))
    if not (build_dir / DATASET_FILE).exists():
        left = [index for index in range(len(plan.shards)) if finished(build_dir, index, plan.shard_key(index)) is None]
        done = [0 if index in set(left) else shard.samples for index, shard in enumerate(plan.shards)]

        def on_samples(index: int, samples: int) -> None:
            done[index] = samples
            if progress is not None:
                progress(sum(done), plan.samples)

        try:
            build_shards(build_dir, left, jobs or len(os.sched_getaffinity(0)), on_samples)
        except BaseException:
            remove_all_dead_parts(build_dir)  # of builders that ended with the one that failed: the disk may be full
            raise
    return finish_dataset(build_dir, datasets_dir)
