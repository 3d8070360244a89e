"""Build, describe, verify and stage datasets, for `slipway dataset`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from base import errors, logs
from base.humanize import and_more, choices, counted, format_duration, format_size
from cluster.schedulers import local
from data_prep.build import dataset, steps
from data_prep.cache.layout import DATASET
from data_prep.file_set import read_any_manifest, verify_dataset
from data_prep.free_space import limit_own_memory
from data_prep.limits import RECHECK_S
from data_prep.manifest import FILE_NAME, Manifest, manifest_digest, to_json
from data_prep.sequences.manifest import SequenceManifest, padding
from data_prep.staging import StageOptions, stage
from data_prep.staging.copy import CopyOptions
from data_prep.tree.manifest import FOLDER, TreeManifest, read_location
from data_prep.tree.plan import KIND as TREES
from workflow.commands.chosen_study import load_chosen_study
from workflow.commands.options import DEFAULT_STUDY, JsonOption, SiteOption, StudyOption
from workflow.commands.watching import output
from workflow.dag.cell_needs import requirements_of
from workflow.run.node.caches import cache_here
from workflow.study.cell import NO_DATASET, datasets_of
from workflow.study.site import Site, storage_limit
from workflow.study.site_file import load_site
from workflow.study.study import Study

# The description of token sequences.


MAX_REJECTED: Final = 20
MAX_WORDS: Final = 10


def _print_sequences(root: Path, manifest: SequenceManifest) -> None:
    output.line(
        f"{manifest.name}: {counted(manifest.samples, 'sequence')}, {counted(manifest.tokens, 'token')} to learn, "
        f"{format_size(manifest.bytes)}, digest {manifest_digest(root)[:12]}"
    )
    output.line(f"  in          {root}")
    words = "" if manifest.words is None else f": {', '.join(map(logs.printable, manifest.words[:MAX_WORDS]))}, ..."
    output.line(f"  vocabulary  {manifest.vocabulary}{words}")
    output.line("  source")
    output.mapping(manifest.source, "    ")
    output.line()
    output.table(("split", "length", "sequences", "tokens", "padding"), [
        (split, length, samples, tokens, f"{padding({length: (samples, tokens)}):.1%}")
        for split in sorted(manifest.splits)
        for length, (samples, tokens) in manifest.groups(split).items()
    ])  # fmt: skip
    for split in sorted(manifest.splits):
        output.line(f"padding of {split} in all: {padding(manifest.groups(split)):.1%}")


# The description of a tree of files.


MAX_FILES: Final = 40


def tree_info(root: Path, manifest: TreeManifest, as_json: bool) -> None:
    """Print what the manifest says, and where the files lie."""
    digest = manifest_digest(root)
    place = str(root / FOLDER) if (root / FOLDER).is_dir() else read_location(root).path
    if as_json:
        files = [{"name": file.name, "bytes": file.bytes} for file in manifest.files]
        output.json_value({**to_json(manifest), "files": files, "digest": digest, "root": str(root), "place": place})
        return
    output.line(f"{manifest.name}: {counted(len(manifest.files), 'file')}, {format_size(manifest.bytes)}, digest {digest[:12]}")
    output.line(f"  in      {place}")
    output.line(f"  listed  {root}")
    output.line()
    output.table(("file", "bytes"), [(logs.printable(file.name), format_size(file.bytes)) for file in manifest.files[:MAX_FILES]])
    if more := and_more(len(manifest.files), MAX_FILES, "files"):
        output.line(f"... {more}; --json lists all")


# The dataset that a word on the command line means: a name of the study, or the directory of a built one.


def dataset_root(study_path: Path, site: str | None, name: str) -> Path:
    """Return the directory of the built dataset. Raises ConfigError for an unknown name, DatasetError when it is not built."""
    return dataset_and_site(study_path, site, name)[0]


def dataset_and_site(study_path: Path, site: str | None, name: str) -> tuple[Path, Site]:
    """Return the directory of the built dataset, and the site: the study's, where the dataset is one of a study."""
    directory = Path(name)
    if "/" in name or (DATASET.fullmatch(name) and (directory / FILE_NAME).is_file()):
        if not (directory / FILE_NAME).is_file():
            found = f"it has no {FILE_NAME}" if directory.is_dir() else "there is no such directory"
            raise errors.DatasetError(
                f"{directory} is not a built dataset: {found}; name a dataset of the study, or the directory of a built one"
            )
        return directory.absolute(), load_site(site)
    if study_path == DEFAULT_STUDY and not study_path.exists():
        raise errors.DatasetError(
            f"the dataset {name!r}: no study is named, and {DEFAULT_STUDY} is not here; write `--study STUDY`, "
            "or the directory of a built dataset"
        )
    study = load_chosen_study(study_path, site)
    needs = requirements_of(study, check_name(study, name))
    if needs.root is None:
        raise errors.DatasetError(
            f"dataset {name!r} of study {study.name!r} is not built, or its receipt in {study.build_dir(name)} cannot be read; "
            f"`{study.command('dataset', 'build', name, '--study', str(study.path))}` builds it"
        )
    return needs.root, study.site


def check_name(study: Study, name: str) -> str:
    """Return `name`, if it is a dataset of the study. Raises ConfigError."""
    known = [known for known, spec in study.datasets.items() if spec.source != NO_DATASET]
    if name not in known:
        raise errors.ConfigError(f"study {study.name!r} has no dataset {name!r}; {choices(name, known) if known else 'it needs none'}")
    return name


MAX_CLASSES = 20


def info(
    name: Annotated[str, typer.Argument(help="A dataset of the study, or the directory of a built one.")],
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show classes, splits, counts, bytes, mean and deviation of a dataset, and what was rejected."""
    root = dataset_root(study, site, name)
    manifest = read_any_manifest(root)
    if isinstance(manifest, TreeManifest):
        tree_info(root, manifest, as_json)
        return
    if as_json:
        value = to_json(manifest)
        value["shards"] = [{key: item for key, item in shard.items() if key != "chunks"} for shard in value["shards"]]
        output.json_value({**value, "digest": manifest_digest(root), "root": str(root)})
        return
    if isinstance(manifest, SequenceManifest):
        _print_sequences(root, manifest)
    else:
        _print(root, manifest)
    if manifest.rejected_count:
        output.line(f"\nrejected: {manifest.rejected_count}")
        for entry in manifest.rejected[:MAX_REJECTED]:
            output.line(f"  {entry['name']}: {entry['reason']}")
        if more := and_more(manifest.rejected_count, MAX_REJECTED):
            output.line(f"  ... {more}; --json lists those in the manifest")


def verify(
    name: Annotated[str, typer.Argument(help="A dataset of the study, or the directory of a built or staged one.")],
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
) -> None:
    """Hash every chunk of a dataset and compare it with the manifest; exit 15 if one differs."""
    root = dataset_root(study, site, name)
    with output.progress(f"verify {root.name}") as callback:
        manifest, place = verify_dataset(root, callback)
    held = counted(len(manifest.files), "file") if isinstance(manifest, TreeManifest) else counted(manifest.samples, "sample")
    output.line(f"{place}: {held}, {format_size(manifest.bytes)}, every chunk is what the manifest in {root} promises")


def stage_here(
    name: Annotated[str, typer.Argument(help="A dataset of the study, or the directory of a built one.")],
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    node: Annotated[int, typer.Option("--node", min=0, help="With the local scheduler: the node whose cache is filled.")] = 0,
) -> None:
    """Bring a built dataset into this node's cache, checked, before a run needs it."""
    root, here = dataset_and_site(study, site, name)
    if node and here.scheduler != "local":
        raise errors.ConfigError(
            f"--node {node}: site {here.name!r} has scheduler {here.scheduler}, and its nodes are machines: run this on the node"
        )
    logs.private_umask(group=here.shared == "group")
    cache = cache_here(here) / f"{local.NAME}-{node}" if here.scheduler == "local" else cache_here(here)
    check_s = RECHECK_S if here.cache.check_s is None else here.cache.check_s
    copy = CopyOptions(bytes_per_s=storage_limit(here).bytes_per_s)
    with output.progress(f"stage {root.name}") as callback:
        options = StageOptions(copy=copy, check_s=check_s, group=here.shared == "group")
        staged = stage(root, cache, max_bytes=here.cache.max_bytes, progress=callback, options=options)
    anew = f"was there already, {format_size(staged.checked_bytes)} of it hashed anew"
    how = anew if staged.hit else f"{format_size(staged.copied_bytes)} copied in {format_duration(staged.seconds)}"
    if staged.resumed_bytes:
        how += f", {format_size(staged.resumed_bytes)} left by an interrupted copy"
    output.line(f"{staged.root}: {how}")


def _print(root: Path, manifest: Manifest) -> None:
    size = f"{manifest.size[0]}x{manifest.size[1]}" if manifest.size else "different sizes"
    output.line(
        f"{manifest.name}: {counted(manifest.samples, 'sample')}, {format_size(manifest.bytes)}, digest {manifest_digest(root)[:12]}"
    )
    output.line(f"  in      {root}")
    output.line(f"  images  {size}, {counted(manifest.channels, 'channel')}, {manifest.encoding}, {manifest.layout}")
    output.line(f"  check   {manifest.check}")
    of = f"{counted(manifest.statistics_samples, 'sample')} of train" if manifest.statistics_samples else "train"
    output.line(f"  mean    {', '.join(f'{value:.4g}' for value in manifest.mean)}  (of {of}, 0 to 255)")
    output.line(f"  std     {', '.join(f'{value:.4g}' for value in manifest.std)}")
    output.line("  source")
    output.mapping(manifest.source, "    ")
    output.line()
    splits = sorted(manifest.splits.items())
    output.table(("split", "samples", "shards", "bytes"), [
        (name, split.samples, len(split.shards), format_size(sum(manifest.shards[index].bytes for index in split.shards)))
        for name, split in splits
    ])  # fmt: skip
    output.line()
    rows = [(name, *(split.class_counts[index] for _, split in splits)) for index, name in enumerate(manifest.classes)]
    output.table(("class", *(name for name, _ in splits)), rows[:MAX_CLASSES])
    if more := and_more(len(rows), MAX_CLASSES, "classes"):
        output.line(f"... {more}; --json lists all")
    if manifest.left_out_classes:
        output.line(f"\nleft out, since they have too few samples: {', '.join(manifest.left_out_classes)}")


# The build without snakemake, as its dataset rules do it.


MAX_LEFT_OUT: Final = 10
BUILT: Final = "; it was built before, and its source was not looked at: `--fresh` builds it anew"


def build(  # noqa: PLR0913 - its options
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Datasets of the study; default: those its cells use.")
    ] = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Shards at once; default: the cores.", show_default=False)] = len(
        os.sched_getaffinity(0)
    ),
    fresh: Annotated[bool, typer.Option("--fresh", help="Read the source again, whose files have changed since the last build.")] = False,
) -> None:
    """Build the datasets that the study's cells use, or the named ones, on network storage.

    Datasets that are built stay as they are, and an interrupted build is resumed.
    """
    limit_own_memory()
    loaded = load_chosen_study(study, site)
    logs.private_umask(group=loaded.site.shared == "group")
    chosen = [check_name(loaded, name) for name in names or ()] or datasets_of(loaded.cells)
    if not chosen:
        output.line(f"no cell of {loaded.name} has a dataset: there is nothing to build")
    for name in chosen:
        _build(loaded, name, jobs, fresh=fresh)


def _build(study: Study, name: str, jobs: int, *, fresh: bool) -> None:
    spec = study.datasets[name]
    is_built = not fresh and not spec.is_tree and (study.build_dir(name) / steps.DATASET_FILE).exists()
    with output.progress(f"dataset {name}", "bytes" if spec.is_tree else "samples") as callback:
        built = dataset.build_dataset(spec, name, study.datasets_dir, jobs, callback, fresh=fresh)
    samples = "" if built.samples is None else f"{built.samples} samples, "
    output.line(f"{name}: {samples}{format_size(built.bytes)} in {study.datasets_dir / built.path}{BUILT * is_built}")
    if spec.is_tree:
        _print_left_out(TREES.read_plan(study.build_dir(name)).left_out)


def _print_left_out(left_out: Sequence[tuple[str, str]]) -> None:
    for entry, reason in left_out[:MAX_LEFT_OUT]:
        output.line(f"  left out: {entry}: {reason}")
    if more := and_more(len(left_out), MAX_LEFT_OUT):
        output.line(f"  ... {more}")
