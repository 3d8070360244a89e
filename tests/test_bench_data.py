"""Statistics and table of `make bench-data`."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.data import table
from benchmarks.data.__main__ import Running, parse_arguments
from benchmarks.data.table import IMAGES, SECONDS, Measured, Turn

ORDER = ("W1", "R1", "S2")
DAY = "2026-11-27"


def turns(*seconds: float, amount: float = 1000.0) -> tuple[Turn, ...]:
    return tuple(Turn(amount, each, each / 2) for each in seconds)


def text_with(*lines: str) -> str:
    return f"above\n\n{table.MACHINE}| this machine |\n\n{table.as_table(list(lines))}\n\nbelow\n"


def test_a_rate_is_more_where_time_is_less_and_seconds_are_what_they_are() -> None:
    (turn,) = turns(0.5)
    assert table.figure(turn, IMAGES) == 2000
    assert table.figure(turn, table.MEGABYTES) == 0.002
    assert table.figure(turn, SECONDS) == 0.5


@pytest.mark.parametrize("unit", [IMAGES, SECONDS])
def test_a_ratio_above_one_says_that_slipway_is_faster_whatever_the_unit(unit: table.Unit) -> None:
    assert table.speed_ratios(turns(1, 2), turns(2, 8), unit) == [2, 4]


def test_ratios_are_of_one_round_so_that_a_slow_one_counts_for_both() -> None:
    own, peer = turns(1, 10, 1), turns(2, 20, 2)
    assert table.spread(table.speed_ratios(own, peer, IMAGES)) == (2, 2, 2)


def test_a_contender_that_failed_in_a_later_round_has_the_ratios_of_those_before() -> None:
    assert table.speed_ratios(turns(1, 1, 1), turns(3), IMAGES) == [3]


def test_the_lines_of_a_row_have_median_range_processor_time_and_ratio() -> None:
    found = [Measured("Slipway", turns(1, 2, 4)), Measured("other 1.0", turns(2, 2, 2))]
    own, other = table.lines(("W1", "build"), IMAGES, found, DAY)
    assert own == f"| W1 | build | Slipway | 500 images/s | 250 to 1,000 | 1,000 µs |  | {DAY} |"
    assert other == f"| W1 |  | other 1.0 | 500 images/s | 500 to 500 | 1,000 µs | 1 x (0.5 to 2) | {DAY} |"


def test_where_slipway_itself_failed_peers_have_figures_and_no_ratio() -> None:
    failed, other = table.lines(("S2", "resume"), SECONDS, [Measured("Slipway", missing="why"), Measured("rsync", turns(1))], DAY)
    assert "Slipway: not measured, why" in failed
    assert other == f"| S2 |  | rsync | 1 s | 1 to 1 | 0.5 s |  | {DAY} |"


def test_a_row_that_is_measured_again_takes_the_place_of_its_old_lines_and_the_document_keeps_the_rest() -> None:
    text = table.with_table(text_with("| W1 | a | x |", "| S2 | b | z |", "| X9 | gone | x |"), ["| W1 | a | m |"], ORDER, "another one")
    assert text == text_with("| W1 | a | m |", "| S2 | b | z |").replace("this machine", "another one")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "0"], "--size: found 0; valid: a number above 0"),
        (["--size", "nan"], "--size: found nan; valid"),
        (["--seconds", "-1"], "--seconds: found -1; valid"),
        (["--repeats", "0"], "--repeats: found 0; valid: a whole number from 1"),
        (["--jobs", "0"], "--jobs: found 0; valid"),
        (["--batch", "0"], "--batch: found 0; valid"),
    ],
)
def test_options_with_which_nothing_can_be_measured_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_interrupted_turn_leaves_no_timer_for_which_the_end_of_the_program_waits() -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    running: Any = Running.__new__(Running)
    running.process = SimpleNamespace(stdout=SimpleNamespace(readline=interrupted), kill=lambda: None)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        running.answer()
    for timer in set(threading.enumerate()) - before:
        timer.join(30)
    assert set(threading.enumerate()) <= before
