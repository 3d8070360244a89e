"""The Snakemake below `slipway run`: which signals reach it, and that it is asked before it is killed."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from base.errors import LeaseError, RecordError, StorageError
from tests.workflow.commands.conftest import House
from tests.workflow.commands.test_status_logs import hold
from workflow.commands.run import Child, _make_log, end
from workflow.commands.watching.live_table import View
from workflow.dag.graph import Graph
from workflow.study.study import load_study

pytestmark = pytest.mark.processes

ASKED = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1]).write_text("asked")
    sys.exit(0)
signal.signal(signal.SIGINT, end)
pathlib.Path(sys.argv[1] + ".ready").touch()
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
while True:
    time.sleep(0.05)
"""


@contextmanager
def ready(program: str, mark: Path) -> Iterator[Child]:
    """A child that has begun to wait for signals; its log is `log` beside `mark`."""
    log = mark.with_name("log")
    with Child([sys.executable, "-c", program, str(mark)], log, os.environ) as child:
        while not Path(f"{mark}.ready").exists():
            assert child.wait(0.05) is None, log.read_text()
        yield child


def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Child([sys.executable, "-c", ""], tmp_path / "log", os.environ) as child:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            while child.wait(1) is None:
                continue
        assert child.signals == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_who_is_left_early_is_asked_to_end(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with ready(ASKED, mark):
        pass
    assert mark.read_text() == "asked"


def test_a_terminal_that_is_closed_is_an_interrupt(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with ready(ASKED, mark) as child:
        os.kill(os.getpid(), signal.SIGHUP)
        assert child.wait(30) == 0
    assert (mark.read_text(), child.signals) == ("asked", [signal.SIGHUP])


def test_a_ctrl_c_while_python_forks_is_heard_and_waits_until_the_child_listens(tmp_path: Path) -> None:
    mark, early = tmp_path / "mark", [signal.SIGINT]
    os.register_at_fork(after_in_parent=lambda: early and os.kill(os.getpid(), early.pop()))
    with Child([sys.executable, "-c", ASKED, str(mark)], tmp_path / "log", os.environ) as child:
        assert child.wait(30) == 0
    assert (mark.read_text(), child.signals) == ("asked", [signal.SIGINT])


def test_a_second_term_ends_the_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow.commands.run.SAME_INTERRUPT_S", 0.0)  # the second one is none that came twice
    mark = tmp_path / "mark"
    stubborn = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{ASKED}"
    with ready(stubborn, mark) as child:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert child.wait(30) == 0
    assert mark.read_text() == "asked"
    assert child.signals == [signal.SIGTERM, signal.SIGTERM]


def test_lines_that_nobody_reads_end_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        lines = View(full, lambda: 0.0)
        lines.print("nobody reads this")
        lines.print("nor this")
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_ctrl_c_that_comes_three_times_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake that is interrupted while it ends its runs leaves them to themselves."""
    monkeypatch.setattr("workflow.commands.run.SAME_INTERRUPT_S", 3600.0)
    mark = tmp_path / "mark"
    counts = ASKED.replace('    pathlib.Path(sys.argv[1]).write_text("asked")\n    sys.exit(0)', '    print("interrupted", flush=True)')
    assert "interrupted" in counts
    with ready(counts, mark) as child:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        while "interrupted" not in (tmp_path / "log").read_text():
            assert child.wait(0.05) is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert child.wait(30) == -signal.SIGTERM
    assert (tmp_path / "log").read_text() == "interrupted\n"
    assert child.signals == [signal.SIGINT, signal.SIGTERM]


# How `slipway run` ends where another start of the study had some of its runs.


FAILED = "Error in rule {}:\n    message: None\n"


@pytest.fixture
def ended(house: House, tmp_path: Path) -> Callable[..., None]:
    """Snakemake has ended with 1, since jobs of those rules have failed; `asked`: the receipts that it was to make."""

    def call(asked: list[str], *rules: str) -> None:
        (log := tmp_path / "snakemake.log").write_text("".join(FAILED.format(rule) for rule in rules))
        end(Graph(house.load(), retry_failed=False), asked, 1, (), log, table=False)

    return call


def test_who_has_the_runs_that_are_left_is_named(house: House, ended: Callable[..., None]) -> None:
    first, second, third = (run.run_id for run in house.load().runs[:3])
    house.record(third, "ok")
    hold(house, first)
    who = (
        rf"1 run is at work in another start: {first}, attempt 1: process {os.getpid()} on .*; when that has ended, the same command finds"
    )
    with pytest.raises(LeaseError, match=who):
        ended([first, third], "stage_train_push")
    with pytest.raises(RecordError, match="2 runs have no result; `slipway status "):
        ended([first, second, third], "stage_train_push")


def test_a_retry_that_was_prevented_is_no_result(house: House, ended: Callable[..., None]) -> None:
    run_id = house.load().runs[0].run_id
    house.record(run_id, "error")
    with pytest.raises(RecordError, match="1 run has no new result; "):
        ended([f"{run_id}.after-1"], "stage_train_push")


def test_who_has_a_failed_run_that_is_to_be_retried_is_named_too(house: House, ended: Callable[..., None]) -> None:
    run_id = house.load().runs[0].run_id
    house.record(run_id, "error")
    hold(house, run_id)
    with pytest.raises(LeaseError, match=rf"1 run is at work in another start: {run_id}, attempt 1: process {os.getpid()} "):
        ended([f"{run_id}.after-1"], "stage_train_push")


@pytest.mark.slow
def test_where_another_start_made_the_results_the_report_is_made_and_all_is_well(house: House, ended: Callable[..., None]) -> None:
    study = house.load()
    for run in study.runs:
        house.record(run.run_id, "ok")
    asked = [run.run_id for run in study.runs]
    with pytest.raises(
        RecordError, match="the report is not complete: page failed; `slipway report .*` makes it, or says what is in the way"
    ):
        ended(asked, "page")
    assert not (study.results_dir / "report.html").exists()
    ended(asked, "stage_train_push")
    assert (study.results_dir / "report.html").exists()


def test_results_that_cannot_be_written_name_the_site_file(house: House) -> None:
    site = house.root / "site.yaml"
    site.write_text("storage: /proc/nowhere\ncache: {path: cache}\n")
    study = load_study(house.path, str(site), {})
    with pytest.raises(StorageError, match=rf"cannot be written: /proc/nowhere: .* \(site {site}\)$"):
        _make_log(study.results_dir / "logs" / "snakemake.log", study)
