"""What a cluster says of its results is not believed: no file lands elsewhere, and none that could be run."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import pytest
from blake3 import blake3

from base.errors import ConfigError, RecordError, RemoteError
from cluster.ssh import Sink, copying
from workflow.commands.remote import Far, _study_verb
from workflow.remote.fetching import fetch, parse_told
from workflow.remote.kept import Settings
from workflow.remote.typed import sort_typed

CONTENT = b"<html>"
HOSTILE = [
    "../report.html",
    "tables/../../report.html",
    "/etc/passwd",
    "//etc/passwd",
    "./report.html",
    "tables//a.csv",
    "tables",
    "",
    ".",
    ".bashrc",
    ".coming/report.html",
    "tables/.ssh/authorized_keys",
    "Makefile",
    "program/train.py",
    "runs/a/b/record.json",
    "runs/../record.json",
    "tables/a\nb.csv",
    "tables/a\x1b[2J.csv",
    "tables/a\u202egpj.csv",
    "tables/a\0b",
]


class Line:
    """A cluster whose answer to tar is `packed`, whatever was asked for."""

    host = "gate"

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def connect(self, *, ask: bool) -> None:
        """It is there."""

    def stream(self, argv: Sequence[str], out: Sink, _err: Sink, *, stdin: IO[bytes] | None = None, limit_s: float | None = None) -> int:
        assert (stdin is None) == (argv[0] != "tar")
        assert limit_s is None
        if argv[0] == "tar":
            out(self._packed)
        return 0

    def put(self, source: Path, target: str) -> None:
        raise AssertionError((source, target))

    def get(self, source: str, files: Sequence[str], target: Path) -> None:
        copying.get(self, source, files, target)

    def close(self) -> None:
        """Nothing is open."""


def told(*names: str) -> dict[str, Any]:
    return {"results": "/far", "files": [{"name": name, "bytes": len(CONTENT), "blake3": blake3(CONTENT).hexdigest()} for name in names]}


def packed(*members: tuple[str, bytes | str]) -> bytes:
    """A name with bytes is a file, with text a link to it."""
    whole = BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in members:
            one = tarfile.TarInfo(name)
            if isinstance(content, str):
                one.type, one.linkname = tarfile.SYMTYPE, content
                tar.addfile(one)
            else:
                one.size = len(content)
                tar.addfile(one, BytesIO(content))
    return whole.getvalue()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_no_result_is_refused_before_anything_comes(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="no file of a study's results"):
        fetch(Line(packed((name.replace("\0", ""), CONTENT))), told("report.html", name), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_comes_down_is_accepted() -> None:
    names = ["study.json", "study.yaml", "records.parquet", "report.html", "tables/speedup.csv", "plots/a b/c.svg", "runs/x-r1/record.json"]
    assert [file.name for file in parse_told(told(*names))[1]] == names
    with pytest.raises(RecordError, match="twice"):
        parse_told(told("report.html", "report.html"))


def test_an_answer_with_links_and_strange_members_brings_the_files_alone(tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    answer = packed(("tables", str(outside)), ("../evil", CONTENT), ("/evil", CONTENT), ("tables/a.csv", CONTENT), ("report.html", CONTENT))
    fetch(Line(answer), told("tables/a.csv", "report.html"), out)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.is_dir()} == {
        "out/tables/a.csv",
        "out/report.html",
    }
    assert not (out / "tables").is_symlink()


def test_a_link_in_place_of_a_file_is_none(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    with pytest.raises(RemoteError, match="changed while coming"):
        fetch(Line(packed(("report.html", str(secret)))), told("report.html"), tmp_path / "out")
    assert not (tmp_path / "out" / "report.html").exists()


def test_results_do_not_replace_the_study_that_was_typed(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("study: a\n")
    typed = sort_typed("tables", [str(tmp_path / "study.yaml"), "--out", str(tmp_path)])
    far = Far(line=Line(b""), settings=Settings(slipway="slipway", site=None, transport=None))
    with pytest.raises(ConfigError, match="would replace it"):
        _study_verb(far, "tables", typed)
