"""Write where the numbers come from, and how to reproduce a study: its file as it was typed, its site, its programs and the commands."""

import hashlib
import os
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from base.humanize import counted, some
from base.logs import printable
from base.untrusted import open_file
from workflow.report.analysis import Analysis
from workflow.report.collect import Source, StudyFile, read_study
from workflow.run.record.parquet_columns import PROVENANCE
from workflow.study.paths import STUDY_SOURCE, kept_program

MAX_HOSTS: Final = 12
MAX_VALUES: Final = 6
SHOWN: Final = ("scheduler", "scheduler_version", "engine", "device", "threads_per_rank", "dataset_digest", *PROVENANCE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A titled list of names and values, or some lines of code, with words before it. All of it is text."""

    title: str
    text: str = ""
    items: tuple[tuple[str, str], ...] = ()
    code: str = ""


def provenance(analysis: Analysis) -> tuple[Block, ...]:
    """Make one block per source. Several values of one thing are all shown, with the number of runs that had each."""
    return tuple(_of_source(analysis, source) for source in analysis.sources)


def _of_source(analysis: Analysis, source: Source) -> Block:
    rows = analysis.frame.filter((pl.col("source") == source.label) & pl.col("attempt").is_not_null())
    items = [("directory", source.path), ("study", source.study), ("hosts", _hosts(rows)), ("each host", _values(rows["machine"]))]
    memory = rows["gpu_memory_bytes"].map_elements(lambda size: f"{size / 2**30:.0f} GiB each", return_dtype=pl.String)
    items += [("GPU memory", _values(memory))]
    items += [(name.replace("_", " "), _values(rows[name])) for name in SHOWN]
    if source.left_out:
        items.append(("left out", f"{source.left_out} runs that the study no longer asks for"))
    return Block(title=printable(source.label), items=tuple((name, printable(value)) for name, value in items if value))


def _values(column: pl.Series) -> str:
    counts = Counter(str(value) for value in column.drop_nulls().to_list())
    if len(counts) <= 1:
        return next(iter(counts), "")
    shown = [f"{value} ({count} runs)" for value, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
    return some(shown, MAX_VALUES, "; ")


def _hosts(rows: pl.DataFrame) -> str:
    hosts = sorted({host for text in rows["hosts"].drop_nulls().unique().to_list() for host in text.split(",") if host})
    return f"{len(hosts)}: {some(hosts, MAX_HOSTS)}" if hosts else ""


# Write how to reproduce a study: its file as it was typed, its site, its programs and the commands. A test runs them in a fresh clone.


DIGEST: Final = re.compile(r"[0-9a-f]{64}")

# Commands that bring back the files of the study's own programs.


SHORT = 12
KEPT = (
    "The files of the study's own programs as they were in the runs are kept beside the results; `slipway verify` compares them with the "
    "digests in the records. "
)


def programs_block(analysis: Analysis, source: Source, of: str) -> Block | None:
    """List the programs of a source, and the commands that put them where its study file looks for them; None where it has none."""
    ran = _ran(analysis, source)
    if not ran or not (source.directory / "study.json").exists():
        return None
    study = read_study(source.directory)
    words, code = [KEPT], []
    for name, digests in sorted(ran.items()):
        digest, runs = digests.most_common(1)[0]
        folder, kept = _folder(study, name), kept_program(Path(source.path), digest)
        if len(digests) > 1:
            others = some([f"{other[:SHORT]} ({counted(number, 'run')})" for other, number in digests.most_common()[1:]], 3)
            words.append(f"{name} had several states: {digest[:SHORT]} ({counted(runs, 'run')}, here), {others}. ")
        if not kept_program(source.directory, digest).is_dir():
            words.append(f"The files of {name} are missing: {kept}. ")
        elif folder is None:
            words.append(f"Let `folder` of the program {name} in the study file be {kept}. ")
        else:
            target = shlex.quote(folder)
            code.append(f"mkdir -p {target} && cp -R {shlex.quote(str(kept))}/. {target} && chmod -R u+w {target}")
    return Block(title=printable(f"The programs{of}"), text=printable("".join(words).strip()), code=printable("\n".join(code)))


def _ran(analysis: Analysis, source: Source) -> dict[str, Counter[str]]:
    rows = analysis.frame.filter((pl.col("source") == source.label) & pl.col("program_digest").is_not_null())
    found: dict[str, Counter[str]] = {}
    for name, digest in rows.select("framework", "program_digest").iter_rows():
        if DIGEST.fullmatch(digest):
            found.setdefault(str(name), Counter())[digest] += 1
    return found


def _folder(study: StudyFile, name: str) -> str | None:
    """Return the folder relative to the study file; None where it is not beside that, so that nothing may be written there."""
    folders = [cell.program.get("folder") for cell in study.cells.values() if cell.framework == name and cell.program]
    if not folders or not isinstance(folders[0], str) or study.file_path is None:
        return None
    relative = os.path.relpath(folders[0], Path(study.file_path).parent)
    return None if relative == "." or relative.startswith("..") else relative


MAX_PROGRAM_BYTES: Final = 1 << 20
END: Final = "END_OF_FILE"
CLUSTER: Final = (
    "study.json beside the results has the keys of the site. Give it other storage, by a copy of its site file: results that are there "
    "count as done. On a cluster clone to storage that all nodes see."
)
CHANGED: Final = (
    "The file beside the results is not the one that made them: its digest differs from that in study.json, which has everything that the "
    "runs used. "
)


def reproduction(analysis: Analysis) -> tuple[Block, ...]:
    """Show the study file, and the commands that make its runs and tables again, or only the tables from the records."""
    blocks = [block for source in analysis.sources for block in _reproduce_of_source(analysis, source)]
    directories = " ".join(f"--results {shlex.quote(source.path)}" for source in analysis.sources)
    again = Block(
        title="Tables, plots and this page, from the records",
        text="The records hold everything that a table shows. Name the copy if the results were copied.",
        code=printable(f"python -m workflow.report all {directories}"),
    )
    return (_checkout(analysis), *blocks, again)


def study_text(source: Source) -> str | None:
    """Read the study file as it was typed; None where an older version stored none, or it is a link.

    A page made of another's results must not show what a link of theirs leads to.
    """
    try:
        with os.fdopen(open_file(source.directory / STUDY_SOURCE), "rb") as file:
            content = file.read(MAX_PROGRAM_BYTES + 1)
    except OSError:
        return None
    return content.decode(errors="surrogateescape") if len(content) <= MAX_PROGRAM_BYTES else None


def _checkout(analysis: Analysis) -> Block:
    commits = [sha for sha in analysis.frame["git_sha"].drop_nulls().unique(maintain_order=True).to_list() if sha]
    versions = [version for version in analysis.frame["slipway_version"].drop_nulls().unique(maintain_order=True).to_list() if version]
    dirty = "true" in analysis.frame["git_dirty"].drop_nulls().unique().to_list()
    words = ["In a fresh clone of Slipway, with Python 3.11 or newer and make."]
    if len(commits) > 1:
        words.append(f"The runs came from {len(commits)} commits, of which this is the first: see Provenance.")
    if not commits:
        words.append(
            f"The records name no commit: they came from an installed version {' and '.join(versions) or 'that they do not name'}."
        )
    if dirty:
        words.append("Some runs came from a checkout with changes that are in no commit; those changes are not known.")
    code = [f"git checkout --quiet {shlex.quote(commits[0])}"] if commits else []
    return Block(
        title="Slipway as it was",
        text=printable(" ".join(words)),
        code=printable("\n".join([*code, "make install", ". .venv/bin/activate"])),
    )


def _reproduce_of_source(analysis: Analysis, source: Source) -> tuple[Block, ...]:
    several = len(analysis.sources) > 1
    of = f" ({source.label})" if several else ""
    number = analysis.sources.index(source) + 1 if several else ""
    study = f"study{number}.yaml"
    typed = study_text(source)
    if typed is None:
        nothing = "The study file was not stored: the results are of an older version. study.json beside them has all that it came to."
        return (Block(title=printable(f"The study file{of}"), text=nothing),)
    site = shlex.quote(source.site or "local")
    scheduled = source.site_keys.get("scheduler", "local") != "local"
    runs = f"slipway submit {study} --site {site} --wait" if scheduled else f"slipway run {study} --site {site}"
    changed = source.file_sha256 is not None and hashlib.sha256(typed.encode(errors="surrogateescape")).hexdigest() != source.file_sha256
    how = "changed since the last run" if changed else "as it was typed"
    blocks = [
        Block(
            title=printable(f"The study file, {how}{of}"),
            text=f"{CHANGED if changed else ''}Relative paths in it are relative to the file: what they name is put beside it.",
            code=_file(study, typed),
        )
    ]
    if (programs := programs_block(analysis, source, of)) is not None:
        blocks.append(programs)
    again = printable(f"{runs}\nslipway tables --study {study} --site {site} --show")
    return (*blocks, Block(title=printable(f"Runs, tables and page{of}"), text="" if site == "local" else CLUSTER, code=again))


def _file(name: str, text: str) -> str:
    """Return a command that writes the file. What cannot be shown is replaced in it."""
    shown = printable(text if text.endswith("\n") else f"{text}\n")
    end = END
    while end in shown.splitlines():
        end += "_"
    return f"cat > {name} <<'{end}'\n{shown}{end}"
