"""Take a dataset of any kind through its build: plan it once, make each part once, publish it, and last write `dataset.json`.

A part is a shard, or the share of a tree that one job hashes. Each has a receipt, which is written after the part itself is durable: a part
without one is made again. `dataset.json` is the only file that runs depend on.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Protocol, TypeVar

from base import humanize, jsonfile, publish
from base.errors import DatasetError, SlipwayError
from base.typed import Check, Count, Digest, Name, read_as
from data_prep.build.locks import held, own_part, publish_json_of, remove_all_dead_parts, remove_dead_parts
from data_prep.free_space import OWN_MEMORY, is_full, limit_address_space, not_enough_space, require_space, writing
from data_prep.hashing import FileHashes, hash_file
from data_prep.manifest import DATA_NAME, FILE_NAME, AnyManifest, Progress, Shard, digest_of, manifest_digest, silent, to_bytes

if TYPE_CHECKING:
    from data_prep.build.lmdb_writer import LmdbWriter
    from data_prep.spec import DatasetSpec

PLAN_FILE: Final = "plan.json"
MAX_BYTES: Final = 1 << 30
"""The limit of the length of a plan and of a receipt."""


class Plan(Protocol):
    """The content of plan.json, as far as all kinds of dataset have it. Progress counts samples, of a tree bytes."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...
    @property
    def spec12(self) -> str: ...
    @property
    def num_parts(self) -> int: ...
    def part_key(self, index: int) -> str:
        """Return a key for the content of a part. The same key stands for the same bytes."""

    def part_size(self, index: int) -> int:
        """Return what the progress of a part counts to."""

    def part_bytes(self, index: int) -> int:
        """Return about how many bytes are read and written for a part."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The receipt of a part. `key` is that of the plan."""

    key: str


@dataclass(frozen=True, kw_only=True)
class ShardReceipt(Receipt):
    """The receipt of a shard. `hashes` are those of its `data.mdb`."""

    samples: Count
    hashes: FileHashes


P = TypeVar("P", bound=Plan)
R = TypeVar("R", bound=Receipt)
S = TypeVar("S", bound=ShardReceipt)
S_co = TypeVar("S_co", bound=ShardReceipt, covariant=True)


def has_shard(build_dir: Path, index: int, _plan: Plan, receipt: ShardReceipt) -> bool:
    """Return True if the shard of a receipt is there, or in the finished dataset."""
    data = shard_path(build_dir, index) / DATA_NAME
    return (build_dir / DATASET_FILE).exists() or (data.is_file() and data.stat().st_size == receipt.hashes.bytes)


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[P, R]):
    """A kind of dataset: the types of its plan and receipts with the schemas of their files, and what it does in each step.

    Up to `alone_bytes` one process makes all parts, faster than it would start others; a process that makes parts and nothing else may
    take `own_memory` more bytes for each, so that decoders of hostile files fail by themselves. `in_place`: the source is the dataset, and
    is looked at again in the end.
    """

    plan_type: type[P]
    plan_schema: str
    receipt_type: type[R]
    receipt_schema: str
    make_plan: Callable[[DatasetSpec, str, Path, Progress], P]
    make_part: Callable[[Path, int, P, Progress], R]
    is_whole: Callable[[Path, int, P, R], bool]
    publish: Callable[[Path, Path, P, Sequence[R]], BuiltDataset]
    alone_bytes: int = 0
    own_memory: int | None = None
    in_place: bool = False

    def plan(self, spec: DatasetSpec, name: str, build_dir: Path, progress: Progress = silent) -> P:
        """Make `build_dir/plan.json` and what belongs to it, or take what is there of the same specification. `progress(done, in all)`, 0
        while that is unknown. Raises DatasetError for a source that cannot be used and for the plan of another dataset, NotEnoughSpace,
        StorageError."""
        from data_prep.spec import spec12

        build_dir.mkdir(parents=True, exist_ok=True)
        with held(build_dir / "locks" / "plan"):
            if not (build_dir / PLAN_FILE).exists():
                try:
                    plan = self.make_plan(spec, name, build_dir, progress)
                    publish_json_of(build_dir / PLAN_FILE, {"schema": self.plan_schema, **asdict(plan)})
                    return plan
                except MemoryError as error:
                    raise DatasetError(
                        f"{spec.path or spec.source} cannot be listed with the memory that this process may use (half of the machine's, at "
                        f"most {humanize.format_size(OWN_MEMORY)}); a sample takes some 200 bytes: look whether the source is what it "
                        "should be"
                    ) from error
            plan = self.read_plan(build_dir)
        if (plan.name, plan.spec12) != (name, spec12(spec)):
            raise DatasetError(f"{build_dir} belongs to another dataset ({plan.name!r}, {plan.spec12}); build {name!r} somewhere else")
        return plan

    def read_plan(self, build_dir: Path) -> P:
        """Read the plan in `build_dir`. Raises DatasetError when it is missing or of another version."""
        path, again = build_dir / PLAN_FILE, f"remove {build_dir} and build again"
        plain = jsonfile.read_json(path, DatasetError, MAX_BYTES)
        if not isinstance(plain, dict) or plain.get("schema") != self.plan_schema:
            raise DatasetError(f"{path} is not a plan of this version of Slipway, {self.plan_schema}; {again}")
        return read_as(self.plan_type, plain, path, DatasetError, again)

    def find(self, build_dir: Path, index: int, plan: P) -> R | None:
        """Find the receipt of a part that needs no more work."""
        path = receipt_path(build_dir, index)
        try:
            plain = jsonfile.read_json(path, DatasetError, MAX_BYTES)
            receipt = read_as(self.receipt_type, plain, path, DatasetError)
        except DatasetError:
            return None
        own = plain.get("schema") == self.receipt_schema and receipt.key == plan.part_key(index)
        return receipt if own and self.is_whole(build_dir, index, plan, receipt) else None

    def build(self, build_dir: Path, index: int, progress: Progress = silent, *, own_process: bool = False) -> R:
        """Make part `index` and its receipt `shard-NNNNN.json`, in one process at a time; nothing is done where both are there.

        `progress(done, in all)`. The receipt is never older than the plan. Raises DatasetError for a part that the plan does not have, a
        source at fault or changed since the plan; NotEnoughSpace, StorageError.
        """
        plan = self.read_plan(build_dir)
        if not 0 <= index < plan.num_parts:
            raise DatasetError(f"{build_dir} has parts 0 to {plan.num_parts - 1}, not {index}")
        found = self.find(build_dir, index, plan)
        if found is None:
            with held(build_dir / "locks" / f"shard-{index:05d}"):
                found = self.find(build_dir, index, plan) or self._made(build_dir, index, plan, progress, own_process)
        not_older(receipt_path(build_dir, index), build_dir / PLAN_FILE)
        progress(plan.part_size(index), plan.part_size(index))
        return found

    def _made(self, build_dir: Path, index: int, plan: P, progress: Progress, own_process: bool) -> R:
        if own_process and self.own_memory is not None:
            limit_address_space(self.own_memory)
        made = self.make_part(build_dir, index, plan, progress)
        with writing(build_dir, 0, f"shard {index} of {plan.name}"):
            publish_json_of(receipt_path(build_dir, index), {"schema": self.receipt_schema, "index": index, **asdict(made)})
        return made

    def finish(self, build_dir: Path, datasets_dir: Path, progress: Progress = silent) -> BuiltDataset:
        """Publish `datasets_dir/<name>-<digest12>/` and write `build_dir/dataset.json`. A part that is missing is made here. Raises
        DatasetError, NotEnoughSpace, StorageError."""
        plan = self.read_plan(build_dir)
        with held(build_dir / "locks" / "finish"):
            built = None if self.in_place else finished_dataset(build_dir, datasets_dir)
            if built is not None:
                return built
            receipts = []
            for index in range(plan.num_parts):
                receipts.append(self.build(build_dir, index))
                progress(index + 1, plan.num_parts)
            return self.publish(build_dir, datasets_dir, plan, receipts)


def plan_schema(build_dir: Path) -> object:
    """Return what kind of plan is in `build_dir`. Raises DatasetError where there is none."""
    plain = jsonfile.read_json(build_dir / PLAN_FILE, DatasetError, MAX_BYTES)
    return plain.get("schema") if isinstance(plain, dict) else None


def samples_dir(build_dir: Path) -> Path:
    """Return the directory of the lists that say what is in the shards."""
    return build_dir / "samples"


def receipt_path(build_dir: Path, index: int) -> Path:
    """Return the path of a part's receipt, `shard-00000.json`."""
    return build_dir / f"shard-{index:05d}.json"


def shard_path(build_dir: Path, index: int) -> Path:
    """Return the path of a shard, the directory `shard-00000.lmdb`."""
    return build_dir / f"shard-{index:05d}.lmdb"


def not_older(path: Path, than: Path) -> None:
    """Give `path`, still right, the present time if it is older than `than`, which was made again: Snakemake would ask for it for ever."""
    if path.stat().st_mtime_ns < than.stat().st_mtime_ns:
        os.utime(path)


# Shards


class ShardWork(Protocol[S_co]):
    """The work for a shard, whatever its values mean."""

    doing: str

    def least_bytes(self) -> int:
        """Return what the shard takes at least."""

    def check_source(self) -> None:
        """Check that the source has not changed since the dataset was planned. Raises DatasetError."""

    def write(self, part: Path, progress: Progress) -> FileHashes:
        """Write all values durably into an LMDB in `part`, and return its hashes."""

    def receipt(self, hashes: FileHashes) -> S_co:
        """Make the receipt."""


def make_shard(build_dir: Path, index: int, work: ShardWork[S], progress: Progress) -> S:
    """Make `build_dir/shard-NNNNN.lmdb/`: write it in a part of its own, hash it, publish it. Raises DatasetError, NotEnoughSpace,
    StorageError."""
    target = shard_path(build_dir, index)
    remove_dead_parts(target)
    receipt_path(build_dir, index).unlink(missing_ok=True)
    work.check_source()
    require_space(build_dir, work.least_bytes(), work.doing)
    with own_part(target) as part:
        hashes = work.write(part, progress)
        with writing(build_dir, 0, work.doing):
            (part / DATA_NAME).chmod(0o444)
            work.check_source()
            _publish_shard(part, target, hashes)
    return work.receipt(hashes)


def _publish_shard(part: Path, target: Path, hashes: FileHashes) -> None:
    """Publish a shard. A shard of another builder has the same bytes and stays; one of an older plan is removed."""
    if target.exists() and not _has_hashes(target, hashes):
        publish.remove_tree(target)
    if not publish.publish_directory(part, target) and not _has_hashes(target, hashes):
        raise DatasetError(f"{target} was written by another builder with other bytes; remove it and run again")


def _has_hashes(target: Path, hashes: FileHashes) -> bool:
    try:
        return hash_file(target / DATA_NAME).blake3 == hashes.blake3
    except OSError:
        return False


def end_file(writer: LmdbWriter, part: Path) -> FileHashes:
    """End the file of a shard, make it durable, and hash it meanwhile: the disk has the one to do, the processor the other."""
    writer.finish()
    with ThreadPoolExecutor(1) as pool:
        hashes = pool.submit(hash_file, part / DATA_NAME)
        writer.sync()
        return hashes.result()


# Finish


class ShardManifest(AnyManifest, Protocol):
    """A manifest of shards."""

    @property
    def samples(self) -> int: ...
    @property
    def shards(self) -> Sequence[Shard]: ...


DATASET_FILE: Final = "dataset.json"
_DIRECTORY: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}-[0-9a-f]{12}")
DirectoryName = Annotated[str, Check("<name>-<12 hex digits>", lambda value: _DIRECTORY.fullmatch(value) is not None and ".." not in value)]


@dataclass(frozen=True, kw_only=True)
class BuiltDataset:
    """The content of `dataset.json`. `path` is the name of the dataset's directory below the datasets directory."""

    name: Name
    digest: Digest
    path: DirectoryName
    samples: Count | None
    bytes: Count
    spec12: str = ""


def read_dataset_file(build_dir: Path) -> BuiltDataset:
    """Read the finished dataset of `build_dir`. Raises DatasetError when it is not finished."""
    path = build_dir / DATASET_FILE
    return read_as(BuiltDataset, jsonfile.read_json(path, DatasetError), path, DatasetError, "remove it and run again")


def write_dataset_file(build_dir: Path, built: BuiltDataset) -> None:
    """Publish `dataset.json`, last of all."""
    publish_json_of(build_dir / DATASET_FILE, vars(built))


def publish_shards(
    manifest_of: Callable[[P, Sequence[S]], tuple[ShardManifest, Sequence[int]]],
    build_dir: Path,
    datasets_dir: Path,
    plan: P,
    receipts: Sequence[S],
) -> BuiltDataset:
    """Publish a dataset of shards. `manifest_of` lists for each of the manifest's shards the number in the plan."""
    try:
        manifest, sources = manifest_of(plan, receipts)
    except (ValueError, ArithmeticError) as error:
        raise DatasetError(f"plan and receipts in {build_dir} contradict each other ({error}); remove it and build again") from error

    def link_shards(part: Path) -> None:
        for index, shard in zip(sources, manifest.shards, strict=True):
            (part / shard.name).mkdir()
            _link(shard_path(build_dir, index) / DATA_NAME, part / shard.name / DATA_NAME, shard)

    built, _ = publish_dataset(datasets_dir, plan.spec12, manifest, manifest.samples, link_shards)
    write_dataset_file(build_dir, built)
    _clear(build_dir, plan.num_parts)
    return built


def finished_dataset(build_dir: Path, datasets_dir: Path) -> BuiltDataset | None:
    """Find the dataset that `dataset.json` names. The result is None if it is gone, and a stale file is removed."""
    if not (build_dir / DATASET_FILE).exists():
        return None
    built = read_dataset_file(build_dir)
    try:
        if manifest_digest(datasets_dir / built.path) == built.digest:
            touch_finished(build_dir)
            remove_all_dead_parts(build_dir)
            return built
    except DatasetError:
        (build_dir / DATASET_FILE).unlink(missing_ok=True)
        return None
    raise DatasetError(f"{datasets_dir / built.path} has been changed: its manifest is not the one that was built; remove it and run again")


def touch_finished(build_dir: Path) -> None:
    """Keep `dataset.json` from being older than a receipt."""
    for receipt in build_dir.glob("shard-*.json"):
        not_older(build_dir / DATASET_FILE, receipt)


def publish_dataset(
    datasets_dir: Path, spec12: str, manifest: AnyManifest, samples: int | None, fill: Callable[[Path], None]
) -> tuple[BuiltDataset, bool]:
    """Publish `datasets_dir/<name>-<digest12>/` with the manifest and what `fill` makes beside it. The second value is False where it was
    there already. Raises DatasetError, NotEnoughSpace."""
    content = to_bytes(manifest)
    digest = digest_of(content)
    target = datasets_dir / f"{manifest.name}-{digest[:12]}"
    datasets_dir.mkdir(parents=True, exist_ok=True)
    remove_dead_parts(target)
    with own_part(target) as part:
        try:
            fill(part)
            (part / FILE_NAME).write_bytes(content)
            (part / FILE_NAME).chmod(0o444)
            is_new = publish.publish_directory(part, target)
        except OSError as error:
            if is_full(datasets_dir, len(content)):
                raise not_enough_space(datasets_dir, len(content), f"publishing {target.name}") from error
            raise DatasetError(f"{target} cannot be published: {error}; run again") from error
    if manifest_digest(target) != digest:
        raise DatasetError(f"{target} is there already and holds another dataset; remove it and run again")
    built = BuiltDataset(name=manifest.name, digest=digest, path=target.name, samples=samples, bytes=manifest.bytes, spec12=spec12)
    return built, is_new


def _link(built: Path, target: Path, shard: Shard) -> None:
    """Link the same file under another name, or make a checked copy where the file system has no links."""
    try:
        os.link(built, target)
    except OSError as error:
        if error.errno not in publish.NO_LINKS:
            raise
        shutil.copyfile(built, target)
        target.chmod(0o444)
        if hash_file(target).blake3 != shard.blake3:
            raise SlipwayError(f"{built} was copied to {target.parent}, and other bytes arrived") from error


def _clear(build_dir: Path, shards: int) -> None:
    """Remove what the published dataset has made superfluous. Plan, lists and receipts stay."""
    for index in range(shards):
        publish.remove_tree(shard_path(build_dir, index))
    publish.remove_tree(build_dir / "spool")
    remove_all_dead_parts(build_dir)


def source_facts(spec: Mapping[str, Any], keys: Sequence[str], listing_blake3: str) -> dict[str, Any]:
    """Describe the source in a manifest by these keys of the specification, without its place."""
    chosen = {key: spec[key] for key in keys if spec.get(key) is not None}
    if "splits" in chosen:
        chosen["splits"] = {name: "apart" if isinstance(split, dict) else split for name, split in chosen["splits"].items()}
    return {"kind": spec["source"], "listing_blake3": listing_blake3, **chosen}
