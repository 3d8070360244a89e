"""All steps for a tree in one call, as `slipway dataset build` does them: plan, parts in parallel, finish; a killed one is continued."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from data_prep.build.dataset_file import BuiltDataset
from data_prep.build.workers import build_shards
from data_prep.manifest import Progress
from data_prep.spec import DatasetSpec
from data_prep.tree.finish import finish_tree
from data_prep.tree.hashing import finished_part, hash_part
from data_prep.tree.plan import plan_tree

ALONE_BYTES: Final = 64 << 20
"""So much is hashed here, faster than processes are started for it."""


def build_tree(
    spec: DatasetSpec, name: str, build_dir: Path, datasets_dir: Path, jobs: int | None = None, progress: Progress | None = None
) -> BuiltDataset:
    """See data_prep.build.dataset.build_dataset; `progress` is of bytes."""
    plan = plan_tree(spec, name, build_dir, progress and (lambda _done, _total: progress(0, 0)))
    left = [index for index in range(plan.parts) if finished_part(build_dir, index, plan) is None]
    done = [0 if index in set(left) else plan.share_bytes(index) for index in range(plan.parts)]

    def on_bytes(index: int, num_bytes: int) -> None:
        done[index] = num_bytes
        if progress is not None:
            progress(sum(done), plan.bytes)

    if sum(map(plan.share_bytes, left)) <= ALONE_BYTES:
        for index in left:
            hash_part(build_dir, index, lambda num_bytes, _total, index=index: on_bytes(index, num_bytes))  # type: ignore[misc]
    else:
        build_shards(build_dir, left, jobs or len(os.sched_getaffinity(0)), on_bytes)
    built = finish_tree(build_dir, datasets_dir)
    if progress is not None:
        progress(plan.bytes, plan.bytes)
    return built
