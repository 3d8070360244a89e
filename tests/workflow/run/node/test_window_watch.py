"""What a node program sees of a rank's window by its own clock: one that is told too short is found, an honest one never accused."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from workflow.run.node.limits import RANK_LOOK_EVERY_S, WINDOW_LOOK_S, WINDOW_WAIT_S, WINDOW_WAITS_S
from workflow.run.node.ranks import EventTail, Ranks, Watched
from workflow.run.node.window_watch import Line, WindowWatch
from workflow.run.record.model import WindowSeen
from workflow.run.record.outcome import ObservedWindow
from workflow.run.record.window_check import CONFIRMED, ReportedWindow, seen_warnings, window_seen

WARMUP = 10


class Rank:
    """A rank in made time: each step takes `step_s` and is told as `told` of that; its line is written `late_s()` after its end."""

    def __init__(self, path: Path, *, measured: int, step_s: float, told: float = 1.0, phases: bool = True, start_s: float = 3.0) -> None:
        self.path, self.measured, self.told = path, measured, told
        self.lines: list[tuple[float, str]] = []
        if phases:
            self.lines.append((start_s, json.dumps({"event": "phase", "phase": "warmup", "monotonic_ns": self.stamp(start_s)})))
        for step in range(WARMUP + measured):
            if phases and step == WARMUP:
                moment = start_s + step * step_s
                self.lines.append((moment, json.dumps({"event": "phase", "phase": "train", "monotonic_ns": self.stamp(moment)})))
            end = start_s + (step + 1) * step_s
            event = {"event": "step", "step": step, "measured": step >= WARMUP, "seconds": step_s * told, "monotonic_ns": self.stamp(end)}
            self.lines.append((end, json.dumps(event)))
        self.end = start_s + (WARMUP + measured) * step_s

    def stamp(self, moment: float) -> int:
        return int((100 + moment * self.told) * 1e9)

    def late(self, draw: random.Random, most_s: float) -> None:
        """Each line is written up to so much later than its moment; what comes after it begins then."""
        behind_s = 0.0
        for index, (when, line) in enumerate(self.lines):
            told = json.loads(line)
            told["monotonic_ns"] = self.stamp(when + behind_s)
            behind_s += draw.random() * most_s if draw.random() < 0.3 else 0.0
            self.lines[index] = (when + behind_s, json.dumps(told))
        self.end += behind_s

    def together(self, every_s: float) -> None:
        """Lines are written by a thread of its own, so often."""
        self.lines = [(math.ceil(when / every_s) * every_s, line) for when, line in self.lines]
        self.end = max(self.end, self.lines[-1][0])

    def watched(self, held_up: random.Random | None = None, most_s: float = 0.0) -> EventTail:
        """Looked at as the node program looks; with `held_up` each look comes up to `most_s` later, and takes up to as long."""
        now, lines = 0.0, list(self.lines)
        done = now
        beats = EventTail(self.path, now, lambda: done)
        while now <= self.end:
            while lines and lines[0][0] <= now:
                with self.path.open("a") as file:
                    file.write(f"{lines.pop(0)[1]}\n")
            done = now + (0.0 if held_up is None else held_up.random() * most_s)
            beats.poll(now)
            now = done + beats.next_look_s(now) + (0.0 if held_up is None else held_up.random() * most_s)
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for _, line in lines)
        done = now + 0.001
        beats.poll(now)
        return beats

    def seen(self, beats: EventTail) -> tuple[float, float, float]:
        """What is told of the window, and what was seen at the least and at the most."""
        found = beats.window.seen(0)
        assert found is not None
        assert (found.first, found.last) == (WARMUP, WARMUP + self.measured - 1)
        first = json.loads(next(line for _, line in self.lines if '"step": 10,' in line))
        last = json.loads(self.lines[-1][1])
        return (last["monotonic_ns"] - first["monotonic_ns"]) / 1e9 + first["seconds"], found.least_s, found.most_s


def confirmed(told_s: float, least_s: float, most_s: float) -> bool:
    return least_s >= told_s * (1 - CONFIRMED) and most_s <= told_s * (1 + CONFIRMED)


@pytest.mark.parametrize("phases", [True, False])
@pytest.mark.parametrize(("measured", "step_s"), [(50, 0.01), (500, 0.001), (100, 0.3), (5, 60.0), (2000, 0.02)])
def test_an_honest_window_is_confirmed(tmp_path: Path, measured: int, step_s: float, phases: bool) -> None:
    rank = Rank(tmp_path / "events-0.jsonl", measured=measured, step_s=step_s, phases=phases)
    beats = rank.watched()
    told_s, least_s, most_s = rank.seen(beats)
    assert least_s <= measured * step_s <= most_s
    assert confirmed(told_s, least_s, most_s)
    assert beats.window.problem() is None


@pytest.mark.parametrize(
    ("told", "measured", "step_s", "wrong"),
    [(1 / 3, 100, 0.3, True), (0.8, 100, 0.1, True), (0.05, 60, 0.1, True), (0.96, 1000, 0.1, False), (1 / 3, 50, 0.01, False)],
)
def test_a_window_that_is_told_too_short_is_an_error(tmp_path: Path, told: float, measured: int, step_s: float, wrong: bool) -> None:
    """By 5 % and one second; what is less is not confirmed."""
    problem = Rank(tmp_path / "events-0.jsonl", measured=measured, step_s=step_s, told=told).watched().window.problem()
    assert (problem is not None) == wrong, problem
    assert problem is None or problem.endswith("its clock is wrong, or it does not write its events as they happen")


def test_without_stamps_nothing_is_said_of_a_clock() -> None:
    watch = WindowWatch(0.0)
    assert watch.problem() is None
    for step in range(2):
        watch.take(Line(step, None, 0.1, True, step), 5.0 * step, 5.0 * step + 0.01)
    assert watch.problem() is None


@pytest.mark.parametrize("told", [1 / 3, 0.7, 1.4, 3.0])
def test_a_window_that_is_told_wrongly_is_not_confirmed(tmp_path: Path, told: float) -> None:
    rank = Rank(tmp_path / "events-0.jsonl", measured=50, step_s=0.01, told=told)
    assert not confirmed(*rank.seen(rank.watched()))


def test_a_window_of_a_few_milliseconds_cannot_be_confirmed(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "events-0.jsonl", measured=20, step_s=0.001)
    beats = rank.watched()
    assert not confirmed(*rank.seen(beats))
    assert beats.window.problem() is None


@pytest.mark.parametrize("seed", range(60))
def test_on_a_machine_under_heavy_load_nobody_honest_is_accused(tmp_path: Path, seed: int) -> None:
    """Looks come late and take long, lines are written late, and what was seen still holds the truth."""
    draw = random.Random(seed)
    measured = draw.choice((5, 50, 500))
    rank = Rank(tmp_path / "events-0.jsonl", measured=measured, step_s=0.5 / measured)
    if draw.random() < 0.5:
        rank.late(draw, draw.choice((0.0, 0.05, 0.5)))
    else:
        rank.together(draw.choice((0.1, 0.25, 0.4)))
    beats = rank.watched(draw, draw.choice((0.0, 0.1, 1.0)))
    assert beats.window.problem() is None
    found = beats.window.seen(0)
    assert found is not None
    written = [when for when, line in rank.lines if '"measured": true' in line]
    assert found.most_s >= written[-1] - written[0]


def test_a_pause_of_the_rank_in_its_window_is_part_of_it(tmp_path: Path) -> None:
    """Of a process that was stopped its clock goes on."""
    rank = Rank(tmp_path / "events-0.jsonl", measured=50, step_s=0.01)
    later = [(when + 3.0 * (when > 3.3), line.replace(str(rank.stamp(when)), str(rank.stamp(when + 3.0)))) for when, line in rank.lines]
    rank.lines, rank.end = (
        [(when, line) if when > 3.3 else old for (when, line), old in zip(later, rank.lines, strict=True)],
        rank.end + 3.0,
    )
    beats = rank.watched()
    told_s, least_s, most_s = rank.seen(beats)
    assert told_s == pytest.approx(3.5)
    assert confirmed(told_s, least_s, most_s)
    assert beats.window.problem() is None


def test_what_a_rank_does_between_warm_up_and_window_is_in_neither(tmp_path: Path) -> None:
    """It waits for the others, for instance."""
    watch = WindowWatch(0.0)
    watch.take(Line(9, 10_000_000_000, 1.0, False, 9), 5.0, 5.01)
    watch.take(Line(10, 13_000_000_000, 1.0, True, 10), 8.0, 8.01)
    watch.take(Line(11, 14_000_000_000, 1.0, True, 11), 9.0, 9.01)
    assert watch.seen(3) == ObservedWindow(3, 10, 11, 1.99, 2.02)
    assert watch.seen(3, 10.0) == ObservedWindow(3, 10, 11, 1.99, 2.02, -2.995, -0.995)


@pytest.mark.parametrize(("before_ns", "first_ns"), [(None, 103_000_000_000), (100_000_000_000, None)])
def test_what_lies_before_the_window_is_not_in_its_least_where_nobody_tells_how_long_it_was(
    before_ns: int | None, first_ns: int | None
) -> None:
    """A program that says `train`, reads its data for two seconds, and measures then: without stamps it tells no gap."""
    watch = WindowWatch(0.0)
    watch.take(Line(None, before_ns), 5.0, 5.01)
    watch.take(Line(0, first_ns, 1.0, True, 0), 8.0, 8.01)
    watch.take(Line(1, first_ns and first_ns + 1_000_000_000, 1.0, True, 1), 9.0, 9.01)
    assert watch.seen(0) == ObservedWindow(0, 0, 1, 0.99, 4.01)


@pytest.mark.parametrize("written", [20.0, 14.0])
def test_a_window_that_began_before_the_line_before_it_was_written_is_as_long_as_it_is_told(written: float) -> None:
    """A program that writes a buffer full of lines together; the first buffer is written at `written`, the last at 20 s."""
    watch = WindowWatch(0.0)
    for step in range(9, 20):
        looked = written if step < 13 else 20.0
        watch.take(Line(step, (step + 1) * 1_000_000_000, 1.0, step > 9, step), looked - 0.01, looked)
    found = watch.seen(0)
    assert found is not None
    assert found.most_s == pytest.approx(10.0)
    assert seen_warnings(window_seen([ReportedWindow(0, 10, 19, 10.0)], [found])) == []


def test_looks_are_as_far_apart_as_the_window_is_long() -> None:
    watch = WindowWatch(0.0)
    assert watch.next_look_s(1.0, False) == WINDOW_WAIT_S
    assert watch.next_look_s(5000.0, False) == RANK_LOOK_EVERY_S
    assert watch.next_look_s(5000.0, True) == WINDOW_WAIT_S
    assert watch.next_look_s(5000.0 + WINDOW_WAITS_S, True) == RANK_LOOK_EVERY_S, "it calls no step measured"
    watch.take(Line(0, None, 1.0, True, 0), 9.0, 10.0)
    assert [watch.next_look_s(now, True) for now in (10.1, 20.0, 1000.0)] == [WINDOW_LOOK_S, pytest.approx(0.2), RANK_LOOK_EVERY_S]


def test_a_line_of_several_steps_tells_where_the_window_begins() -> None:
    watch = WindowWatch(0.0)
    assert watch.seen(0) is None
    watch.take(Line(19, None, 10.0, True, 10), 1.0, 1.1)
    found = watch.seen(0)
    assert found is not None
    assert (found.first, found.last) == (10, 19)
    assert window_seen([ReportedWindow(0, 10, 19, 10.0)], [found]) == WindowSeen(rank=0, window_s=10.0, least_s=0.0, most_s=1.1)


def test_a_look_that_could_read_nothing_says_nothing_of_when_lines_were_written(tmp_path: Path) -> None:
    path = tmp_path / "events-0.jsonl"
    path.mkdir()
    beats = EventTail(path, 0.0, lambda: 6.0)
    beats.poll(5.0)
    assert beats.problem is not None
    path.rmdir()
    steps = [{"event": "step", "step": step, "seconds": 1.0, "samples": 1, "loss": 1.0, "measured": True} for step in range(2)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [{"event": "phase", "phase": "train"}, *steps]))
    beats.poll(6.0)
    seen = beats.window.seen(0)
    assert seen is not None
    assert (seen.least_s, seen.most_s) == (0.0, 6.0)


def test_who_has_told_nothing_yet_is_looked_at_when_the_others_have_stopped(tmp_path: Path) -> None:
    stopped, silent = (EventTail(tmp_path / f"events-{rank}.jsonl", 0.0) for rank in range(2))
    (tmp_path / "events-0.jsonl").write_text('{"event": "phase", "phase": "train"}\n{"event": "run_stop"}\n')
    ranks = Ranks.__new__(Ranks)
    ranks.watched = [cast(Watched, SimpleNamespace(ended=False, beats={0: stopped, 1: silent}))]
    assert ranks.look(1.0) == WINDOW_WAIT_S
    assert stopped.stopped
    ranks.watched = [cast(Watched, SimpleNamespace(ended=False, beats={0: stopped}))]
    assert ranks.look(2.0) is None
