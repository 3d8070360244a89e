"""How to get the files of the study's own programs back, as they were when the runs were made: they are kept beside the results."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from pathlib import Path

import polars as pl

from base.logs import printable
from base.units import counted, some
from workflow.report.analysis import Analysis
from workflow.report.kept_programs import DIGEST
from workflow.report.provenance import Block
from workflow.report.sources import Source, StudyFile, read_study
from workflow.study.paths import kept_program

SHORT = 12
KEPT = (
    "The files of the study's own programs as they were in the runs are kept beside the results; `slipway verify` compares them with the "
    "digests in the records. "
)


def programs_block(analysis: Analysis, source: Source, of: str) -> Block | None:
    """The programs of a source, and the commands that put their folders where its study file looks for them; None where it has none."""
    ran = _ran(analysis, source)
    study = read_study(source.place) if ran else None
    if not ran or study is None:
        return None
    words, code = [KEPT], []
    for name, digests in sorted(ran.items()):
        digest, runs = digests.most_common(1)[0]
        folder, kept = _folder(study, name), kept_program(Path(source.path), digest)
        if len(digests) > 1:
            others = some([f"{other[:SHORT]} ({counted(number, 'run')})" for other, number in digests.most_common()[1:]], 3)
            words.append(f"{name} had several states: {digest[:SHORT]} ({counted(runs, 'run')}, here), {others}. ")
        if not kept_program(source.place, digest).is_dir():
            words.append(f"That of {name} is not there: {kept}. ")
        elif folder is None:
            words.append(f"Let `folder` of the program {name} in the study file be {kept}. ")
        else:
            target = shlex.quote(folder)
            code.append(f"mkdir -p {target} && cp -R {shlex.quote(str(kept))}/. {target} && chmod -R u+w {target}")
    return Block(title=printable(f"The programs{of}"), text=printable("".join(words).strip()), code=printable("\n".join(code)))


def _ran(analysis: Analysis, source: Source) -> dict[str, Counter[str]]:
    """Program -> digests of its folder, with the number of runs that had each."""
    rows = analysis.frame.filter((pl.col("source") == source.label) & pl.col("program_digest").is_not_null())
    found: dict[str, Counter[str]] = {}
    for name, digest in rows.select("framework", "program_digest").iter_rows():
        if DIGEST.fullmatch(digest):
            found.setdefault(str(name), Counter())[digest] += 1
    return found


def _folder(study: StudyFile, name: str) -> str | None:
    """The program's folder, relative to the study file; None where it does not lie beside that, so that nothing may be written there."""
    folders = [cell["program"].get("folder") for cell in study.cells.values() if cell.get("framework") == name and cell.get("program")]
    if not folders or not isinstance(folders[0], str) or study.file_path is None:
        return None
    relative = os.path.relpath(folders[0], Path(study.file_path).parent)
    return None if relative == "." or relative.startswith("..") else relative
