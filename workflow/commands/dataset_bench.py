"""Measure a dataset's storage, beside what networks need of it, for `slipway dataset bench`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from base.errors import ConfigError, DatasetError
from base.humanize import format_size, parse_size
from data_prep.file_set import read_any_manifest
from data_prep.manifest import manifest_digest
from data_prep.read_rates import Options, Rate, ReadRates, measure_reads
from data_prep.tree.manifest import TreeManifest
from workflow.commands.chosen_study import load_chosen_study, report_outputs
from workflow.commands.dataset import dataset_root
from workflow.commands.options import DEFAULT_STUDY, JsonOption, SiteOption, StudyOption
from workflow.commands.tables import analysis_of
from workflow.commands.watching import output

if TYPE_CHECKING:
    from workflow.report.table_type import Table

MAX_RATE: Final = 1e9
ACCESS_WORDS: Final = {
    "random": "samples, shuffled",
    "reader": "the reader, one process",
}


def bench(  # noqa: PLR0913 - its options
    name: Annotated[str, typer.Argument(help="A dataset of the study, or the directory of a built or staged one.")],
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    rate: Annotated[
        list[str] | None,
        typer.Option("--rate", metavar="MODEL=SAMPLES/S", help="What one GPU does, instead of measured or published rates; repeatable."),
    ] = None,
    size: Annotated[str, typer.Option("--size", help="The most that one pass reads.")] = "1GB",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=3600, help="The most that one pass takes.")] = Options.seconds,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=1000, help="Passes of each kind.")] = Options.repeats,
    threads: Annotated[int, typer.Option("--threads", min=1, max=256, help="Reads at once.")] = Options.threads,
    as_json: JsonOption = False,
) -> None:
    """Read samples of a dataset where it lies, cold and warm, and say for how many GPUs that is fast enough.

    Each row is the median of the repeats, with the slowest and the fastest. `samples, shuffled` reads the pages of each sample in
    the order of an epoch. `the reader, one process` reads
    samples as training does, with JPEG decoding. Cold data are read after memory was asked to drop them (`posix_fadvise`); there is
    no cold rate on tmpfs, or while another process has the files mapped.

    The rates of GPUs are those of `--rate`, otherwise those of the study's measured runs, otherwise published ones of ResNet-50 on
    V100, A100 and H100.
    """
    rates = dict(map(parse_rate, rate or ()))
    options = Options(bytes=parse_pass_size(size), seconds=seconds, repeats=repeats, threads=threads)
    root = dataset_root(study, site, name)
    manifest = read_any_manifest(root)
    if isinstance(manifest, TreeManifest):
        raise DatasetError(f"{root} is a tree of files, which programs read as they like: it has no samples whose size and order are known")
    with output.progress(f"bench {root.name}", "passes") as callback:
        found = measure_reads(root, manifest, options, callback)
    if not as_json:
        _print_rates(root, found)
    needs = _needs(found, manifest_digest(root), rates, study, site)
    if as_json:
        from workflow.report.formats import to_values

        output.json_value({**_values(root, found), "needs": to_values(needs)})
        return
    from workflow.report.terminal import print_table

    output.line()
    print_table(needs)


def parse_rate(text: str) -> tuple[str, float]:
    """Return model and samples per second of `resnet50=920`. Raises ConfigError."""
    model, _, number = text.rpartition("=")
    try:
        found = float(number)
    except ValueError:
        found = 0.0
    if not model or not 0 < found <= MAX_RATE:
        raise ConfigError(f"--rate {text}: valid: a name and samples per second of one GPU, such as resnet50=920")
    return model, found


def parse_pass_size(text: str) -> int:
    """Return the bytes of `500MB`. Raises ConfigError."""
    try:
        found = parse_size(text)
    except ValueError as error:
        raise ConfigError(f"--size: {error}") from error
    if found < 1:
        raise ConfigError(f"--size {text}: a pass reads at least one byte; valid: a number with its unit, such as 500MB")
    return found


def _needs(found: ReadRates, digest: str, rates: dict[str, float], study: Path, site: str | None) -> Table:
    """Return the table of given rates, else of those that the study measured on the dataset, else of published ones."""
    report_outputs()
    from workflow.report.storage_table import Supply, storage, storage_by_rates

    rate = found.supply
    least, most = (format_size(limit(rate.bytes_per_s)) for limit in (min, max))
    supply = Supply(
        samples_per_s=rate.samples,
        least_per_s=min(rate.samples_per_s),
        bytes_per_s=statistics.median(rate.bytes_per_s),
        sample_bytes=found.sample_bytes,
        method=f"samples, shuffled, {rate.memory}, median of {len(rate.bytes_per_s)} from {least}/s to {most}/s",
    )
    if not rates and (study != DEFAULT_STUDY or study.is_file()):
        results = load_chosen_study(study, site).results_dir
        if results.exists() and (table := storage(analysis_of([results]), supply, digest)).num_rows:
            return table
    return storage_by_rates(rates, supply)


def _print_rates(root: Path, found: ReadRates) -> None:
    where = f" ({found.mount.describe()})" if found.mount else ""
    output.line(f"{root}{where}: a sample takes {format_size(found.sample_bytes)}")
    output.line()
    output.table(("read", "memory", "bytes", "from", "to", "samples"), [_row(rate) for rate in found.rates])
    output.line()
    for note in found.notes:
        output.line(note)


def _row(rate: Rate) -> Sequence[str]:
    each = [f"{format_size(one)}/s" for one in (statistics.median(rate.bytes_per_s), min(rate.bytes_per_s), max(rate.bytes_per_s))]
    return ACCESS_WORDS[rate.access], rate.memory, *each, f"{rate.samples:,.0f}/s"


def _values(root: Path, found: ReadRates) -> dict[str, Any]:
    return {"root": str(root), **asdict(found)}
