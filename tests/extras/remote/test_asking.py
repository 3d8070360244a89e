"""What a cluster says of its results is not believed: no file lands elsewhere, and none that could be run."""

import bz2
import gzip
import json
import lzma
import os
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import pytest
from blake3 import blake3

from base.errors import ConfigError, ConnectionCut, RecordError, RemoteError, SlipwayError
from base.process import CommandResult, Sink
from base.typed import read_as
from cluster import ssh
from extras.remote import asking
from extras.remote.asking import Have, Placed, RemoteHost, ResultFile, Results, answer_of, fetch, find_slipway
from extras.remote.command import _run_typed
from extras.remote.command_words import parse_typed
from extras.remote.laptop_state import Settings

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
    "tables/" + "a" * 256,
    "tables/" + "\u00e9" * 128,
    "tables/" + "a/" * 2000 + "b",
]


class Line:
    """A cluster that answers tar with `packed`, and every question with `answer`, whatever was asked for."""

    host = "gate"

    def __init__(self, packed: bytes = b"", answer: bytes = b"") -> None:
        self._packed, self._answer = packed, answer

    def connect(self, *, ask: bool) -> None:
        """It is there."""

    def stream(self, argv: Sequence[str], out: Sink, _err: Sink, *, stdin: IO[bytes] | None = None, limit_s: float | None = None) -> int:
        assert (stdin is None) == (argv[0] != "tar")
        assert limit_s is not None
        out(self._packed if argv[0] == "tar" else self._answer)
        return 0


def listed(*names: str) -> dict[str, Any]:
    return {"results": "/far", "files": [{"name": name, "bytes": len(CONTENT), "blake3": blake3(CONTENT).hexdigest()} for name in names]}


def brought(packed: bytes, *names: str, out: Path, max_bytes: int = 1 << 30) -> list[str]:
    """Ask for the results and bring them, as `slipway remote gate report` does."""
    line = Line(packed, json.dumps(listed(*names)).encode())
    return fetch(
        line,
        RemoteHost(connection=line, settings=Settings(slipway="/far/slipway")).ask(Results, "results", "/far/study.yaml"),
        out,
        max_bytes,
    )


def packed(*members: tuple[str, bytes | str | None]) -> bytes:
    """A name with bytes is a file, with text a link to it, with None a pipe."""
    whole = BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in members:
            one = tarfile.TarInfo(name)
            if not isinstance(content, bytes):
                one.type, one.linkname = tarfile.FIFOTYPE if content is None else tarfile.SYMTYPE, content or ""
                tar.addfile(one)
            else:
                one.size = len(content)
                tar.addfile(one, BytesIO(content))
    return whole.getvalue()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_no_result_is_refused_before_anything_comes(tmp_path: Path, name: str) -> None:
    with pytest.raises(RemoteError, match="expected the path of a file of a study's results"):
        brought(packed((name.replace("\0", ""), CONTENT)), "report.html", name, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_comes_down_is_accepted() -> None:
    names = ["study.json", "study.yaml", "records.parquet", "report.html", "tables/speedup.csv", "plots/a b/c.svg", "runs/x-r1/record.json"]
    assert [file.name for file in read_as(Results, listed(*names), "gate").files] == names
    for names in (["report.html", "report.html"], ["tables/a/b", "tables/a"], ["plots/a", "plots/a/b/c"]):
        with pytest.raises(RecordError, match="each file once, and none below another"):
            read_as(Results, listed(*names), "gate")


def test_an_answer_with_links_and_strange_members_brings_the_files_alone(tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    answer = packed(("tables", str(outside)), ("../evil", CONTENT), ("/evil", CONTENT), ("tables/a.csv", CONTENT), ("report.html", CONTENT))
    brought(answer, "tables/a.csv", "report.html", out=out)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.is_dir()} == {
        "out/tables/a.csv",
        "out/report.html",
    }
    assert not (out / "tables").is_symlink()


def test_a_link_in_place_of_a_file_is_none(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    with pytest.raises(RemoteError, match="changed while coming"):
        brought(packed(("report.html", str(secret))), "report.html", out=tmp_path / "out")
    assert not (tmp_path / "out" / "report.html").exists()


def test_what_an_earlier_fetch_has_left_does_not_stop_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / ".coming"
    (left / "report.html").mkdir(parents=True)
    (left / "stray").write_bytes(b"")
    brought(packed(("report.html", CONTENT)), "report.html", out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_pipe_among_the_results_is_waited_for_on_neither_side(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.html")
    brought(packed(("report.html", CONTENT)), "report.html", out=tmp_path)
    assert (tmp_path / "report.html").read_bytes() == CONTENT
    with pytest.raises(RemoteError, match="changed while coming"):
        brought(packed(("plots/a.svg", None)), "plots/a.svg", out=tmp_path)


def test_files_that_came_before_a_cut_stay(tmp_path: Path) -> None:
    whole = packed(("report.html", CONTENT), ("tables/a.csv", CONTENT))
    with pytest.raises(RemoteError, match="changed while coming"):
        brought(whole[:1530], "report.html", "tables/a.csv", out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_host_that_sends_without_end_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="sends more than"):
        brought(packed(("report.html", CONTENT)) + bytes(1 << 20), "report.html", out=tmp_path)


@pytest.mark.parametrize(("size", "max_bytes"), [(5 * 10**9, 10**9), (10**18, 2 * 10**18)])
def test_a_host_that_lists_more_than_fits_is_asked_for_nothing(tmp_path: Path, size: int, max_bytes: int) -> None:
    """The line has no answer to tar, so that a fetch would be noticed."""
    files = [{"name": f"tables/{number}.csv", "bytes": size // 2, "blake3": "0" * 64} for number in range(2)]
    found = read_as(Results, {"results": "/far", "files": files}, "gate")
    told: list[str] = []
    with pytest.raises(SlipwayError) as refused:
        fetch(Line(), found, tmp_path, max_bytes, told.append)
    if size > max_bytes:
        assert str(refused.value) == (
            "2 files of 5.0 GB from gate are more than the limit of 1.0 GB, so none was fetched; the largest is tables/0.csv of 2.5 GB. "
            "If you want them: `--max-bytes SIZE`, such as 6GB"
        )
    else:
        assert "fetching 2 files of 1000000.0 TB from gate: 2000000000000065536 bytes" in str(refused.value)
    assert (told, list(tmp_path.iterdir())) == ([], [])


def test_how_much_comes_is_printed_before_it_is_fetched(tmp_path: Path) -> None:
    told: list[str] = []
    found = read_as(Results, listed("report.html"), "gate")
    fetch(Line(packed(("report.html", CONTENT))), found, tmp_path, 1 << 20, told.append)
    fetch(Line(), found, tmp_path, 0, told.append)
    assert told == ["fetching 1 file of 6 B from gate"], "what is here is not fetched again"


def sparse(name: str, num_bytes: int) -> bytes:
    """A file of GNU tar that is one hole, in 512 bytes."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (num_bytes, 0)
    header[483:495] = b"%011o\0" % num_bytes
    return signed(header)


def signed(header: bytearray) -> bytes:
    """The header of a member with the sum that tar looks at."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


@pytest.mark.parametrize("kind", ["sparse", "longer", "gz", "bz2", "xz"])
def test_no_answer_unpacks_to_more_than_was_listed(tmp_path: Path, kind: str) -> None:
    whole = packed(("report.html", bytes(100_000)))
    compressed = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    answer = sparse("report.html", 100_000) if kind == "sparse" else compressed.get(kind, bytes)(whole)
    ssh.get(Line(answer), "/far", {"report.html": len(CONTENT)}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def damaged(kind: str) -> bytes:
    """The header of a member that follows another one."""
    member = tarfile.TarInfo("tables/a.csv")
    if kind.endswith("bytes"):
        header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
        header[124:136] = b"\x80" + (1 << (62 if "2^62" in kind else 80)).to_bytes(11, "big")
        header[156:157] = tarfile.XHDTYPE if "pax" in kind else tarfile.REGTYPE
        return signed(header)
    if kind == "pax size":
        return member.tobuf(tarfile.PAX_FORMAT).join([pax(b"9" * 5000 + b" path=a\n"), b""])
    if kind == "pax sparse":
        return pax(b"22 GNU.sparse.size=x1\n") + member.tobuf()
    member.type = tarfile.GNUTYPE_LONGNAME
    return member.tobuf(tarfile.GNU_FORMAT) * 400


def pax(text: bytes) -> bytes:
    """The header with more about the next member."""
    member = tarfile.TarInfo("more")
    member.type, member.size = tarfile.XHDTYPE, len(text)
    return member.tobuf() + text + bytes(-len(text) % 512)


@pytest.mark.parametrize("kind", ["2^80 bytes", "pax 2^80 bytes", "pax 2^62 bytes", "pax size", "pax sparse", "names"])
def test_a_damaged_answer_is_an_error_and_what_came_before_stays(tmp_path: Path, kind: str) -> None:
    names = ["report.html", "tables/a.csv", *(f"tables/{number}.csv" for number in range(8))]
    with pytest.raises(RemoteError, match="changed while coming"):
        brought(packed(("report.html", CONTENT))[:1024] + damaged(kind) + bytes(1024), *names, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    "answer",
    [
        *("", "[]", "null", "{}", '"hello"', "[" * 100_000, "\0", '{"protocol": 2}'),
        '{"version": "0.1.0", "host": "n1", "program": 7}',
        '{"version": "0.1.0", "host": ["n1"], "program": "/slipway"}',
        '{"version": "0.1.0", "host": "n1", "program": "slipway"}',
        '{"version": "0.1.0", "host": "n1", "program": "/a\\u0000b"}',
        '{"place": "/a", "there": 1, "incoming": "/b"}',
        '{"place": "/a", "there": false, "incoming": null}',
        '{"place": "/a", "there": true, "incoming": "~/b"}',
        '{"results": "/a", "files": {}}',
        '{"results": "/a", "files": [{"name": "report.html", "bytes": -1, "blake3": "%s"}]}' % ("0" * 64),
        '{"results": "/a", "files": [{"name": "report.html", "bytes": 1, "blake3": "0"}]}',
        '{"results": "/a", "files": [["report.html", 1, "0"]]}',
    ],
)
def test_an_answer_of_another_shape_is_an_error(answer: str) -> None:
    line = Line(answer=answer.encode())
    remote = RemoteHost(connection=line, settings=Settings(slipway="/far/slipway"))
    with pytest.raises(RemoteError, match="the answer of gate"):
        find_slipway(line, None)
    for kind in (Have, Placed, Results):
        if kind is not Placed or '"place"' not in answer:
            with pytest.raises(RemoteError, match="the answer of gate"):
                remote.ask(kind, "question")


def test_results_do_not_replace_the_study_that_was_typed(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("study: a\n")
    typed = parse_typed("gate", "tables", [str(tmp_path / "study.yaml"), "--out", str(tmp_path)])
    remote = RemoteHost(connection=Line(), settings=Settings(slipway="slipway", site=None))
    with pytest.raises(ConfigError, match="would replace it"):
        _run_typed(remote, typed)


@pytest.mark.parametrize(("words", "times"), [(["serve", "--", "python"], 1), (["ls"], 2)], ids=["a start", "a question"])
def test_only_what_starts_nothing_is_asked_again_after_a_cut(words: list[str], times: int) -> None:
    class Cut(Line):
        begun = 0

        def stream(self, argv: Sequence[str], *sinks: Sink, **options: Any) -> int:
            if "session" not in argv:
                return super().stream(argv, *sinks, **options)
            self.begun += 1
            raise ConnectionCut("the connection to gate was cut")

    line = Cut()
    with pytest.raises(RemoteError, match="the connection to gate was cut"):
        _run_typed(RemoteHost(connection=line, settings=Settings(slipway="slipway")), parse_typed("gate", "session", words))
    assert line.begun == times


def test_a_file_is_described_by_one_reading_and_what_is_none_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_bytes(CONTENT)
    (tmp_path / "tables").mkdir()
    os.mkfifo(tmp_path / "pipe")
    expected = ResultFile(name="report.html", bytes=len(CONTENT), blake3=blake3(CONTENT).hexdigest())
    assert asking.described(tmp_path, "report.html") == expected
    assert [asking.described(tmp_path, name) for name in ("tables", "pipe", "gone", "report.html/gone")] == [None] * 4


@pytest.mark.parametrize("code", [2, 19])
def test_what_a_host_says_of_its_error_is_shown_up_to_a_length(code: int) -> None:
    result = CommandResult(argv=("slipway",), returncode=code, stdout="", stderr=f"slipway: {'x' * 10**6} the end")
    with pytest.raises(RecordError if code == 19 else RemoteError) as error:
        answer_of(Have, result, "gate")
    assert "the end" in str(error.value)
    assert len(str(error.value)) < 3000
