"""`slipway logs --follow`: what is written meanwhile, from files that come and go."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.workflow.commands.conftest import House
from workflow.commands import logs

follow = partial(logs.show_logs, every_s=0.0, look_s=0.0)


def story(*chapters: Callable[[], None]) -> Callable[[], bool]:
    """Whether the run goes on: each time it is asked, the next thing happens, and after the last it has ended."""
    left = list(chapters)

    def runs() -> bool:
        if not left:
            return False
        left.pop(0)()
        return True

    return runs


def test_lines_come_as_they_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node, rank = tmp_path / "node-0.log", tmp_path / "rank-0.log"
    node.write_text("one\ntwo\n")
    pushed = tmp_path / "attempts"
    pushed.mkdir()

    def begins() -> None:
        rank.write_text("red \x1b[31m\nhal")

    def goes_on() -> None:
        with rank.open("a") as file:
            file.write("f\nlast word")

    def is_pushed() -> None:
        (pushed / rank.name).write_text(rank.read_text())
        rank.unlink()

    files = lambda: [path for path in (node, rank, pushed / rank.name) if path.exists()]  # noqa: E731
    follow(files, story(lambda: None, begins, goes_on, is_pushed))
    assert capsys.readouterr().out == (f"==> {node} <==\none\ntwo\n\n==> {rank} <==\nred \N{REPLACEMENT CHARACTER}[31m\nhalf\nlast word\n")


def test_only_the_last_lines_of_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("".join(f"{number}\n" for number in range(100)))

    def goes_on() -> None:
        with log.open("a") as file:
            file.write("a\nb\nc\n")

    follow(lambda: [log], story(lambda: None, goes_on), 2)
    assert capsys.readouterr().out.splitlines()[1:] == ["98", "99", "a", "b", "c"]


def test_a_line_without_end_is_shown_in_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("x" * (logs.MAX_LINE + 5))
    follow(lambda: [log], story())
    assert [len(line) for line in capsys.readouterr().out.splitlines()[1:]] == [logs.MAX_LINE, 5]


def test_a_log_that_cannot_be_opened_is_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, link = tmp_path / "rank-0.log", tmp_path / "rank-1.log"
    link.symlink_to("elsewhere")
    log.symlink_to("elsewhere")

    def is_mended() -> None:
        log.unlink()
        log.write_text("said\n")

    follow(lambda: [log, link], story(lambda: None, is_mended))
    assert capsys.readouterr().out == f"==> {log} <==\nsaid\n\n==> {link} <==\n[not shown: it is a symbolic link]\n"


def test_of_a_run_that_has_ended_all_is_shown_once(house: House) -> None:
    name = house.load().runs[0].run_id
    logs = house.record(name, "ok") / "logs"
    (logs / "rank-0.log").write_text("said\n")
    said = house("logs", name, "--follow")
    assert (said.code, said.out) == (0, f"==> {logs / 'rank-0.log'} <==\nsaid\n")


def test_logs_as_a_document(house: House) -> None:
    name = house.load().runs[0].run_id
    logs = house.record(name, "ok") / "logs"
    (logs / "rank-0.log").write_text("one\ntwo \x1b\n")
    found = house.json("logs", name, "-n", "1")
    assert found == {
        "run": name,
        "logs": [{"file": str(logs / "rank-0.log"), "lines": ["two \N{REPLACEMENT CHARACTER}"]}],
    }
    assert house("logs", name, "--follow", "--json").code == 2
