"""Cuts of the line at random moments of submitting, waiting and fetching.

Each study is submitted from a laptop, waited for, and its tables are fetched, while the laptop dies, the login node ends all connections,
or the network is gone for a while. A command that was killed, or gave up, is typed again, as its user does. At the end of each study the
cluster has had one job of it, each run was started once, and the laptop has all files as they are there. Only a cut that hit a command
at work counts.
"""

import random
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.minicluster import Cluster
from tests.slurm.laptop import Laptop, Typed
from tests.slurm.test_profiles import Place

RUN_S: Final = 3.0
KINDS: Final = ("killed", "dropped", "killed", "dropped", "silent")
PHASES: Final = ("submit", "wait", "fetch")
OF_A_STUDY: Final = {"submit": 2, "wait": 3, "fetch": 2}
"""How many cuts of each a study gets, as long as it has not ended."""
JOB: Final = re.compile(r"^job \d+ ", re.MULTILINE)
SILENT_S: Final = (1.0, 30.0)
"""From what nobody notices to what ends every connection."""
NOT_REACHED: Final = 28


class Cuts:
    """Of one laptop. `counts`: (phase, kind) of those that hit."""

    def __init__(self, laptop: Laptop, wanted: int, chance: random.Random) -> None:
        self.laptop, self.wanted, self.chance = laptop, wanted, chance
        self.counts: Counter[tuple[str, str]] = Counter()

    @property
    def made(self) -> int:
        return self.counts.total()

    def hit(self, phase: str, typed: Typed) -> None:
        """The next kind. Afterwards the command is dead, or is on its own again."""
        kind = KINDS[self.made % len(KINDS)]
        self.counts[phase, kind] += 1
        if kind == "killed":
            typed.kill()
        elif kind == "dropped":
            self.laptop.drop()
        else:
            self.laptop.cut()
            try:
                typed.ends_within(self.chance.uniform(*SILENT_S))
            finally:
                self.laptop.heal()

    def through(self, study: str) -> None:
        words = ("submit", f"{study}.yaml", "--wait")
        typed = self.laptop.slipway(*words)
        for phase in ("submit", "wait"):
            for _ in range(OF_A_STUDY[phase]):
                typed = self._again(typed, words)
                if self.made < self.wanted and self._moment(phase, typed):
                    self.hit("wait" if JOB.search(typed.said()) else "submit", typed)
        self._finish(typed, words)
        words = ("tables", f"{study}.yaml")
        typed = self.laptop.slipway(*words)
        for _ in range(OF_A_STUDY["fetch"]):
            typed = self._again(typed, words)
            if self.made < self.wanted and not typed.ends_within(self.chance.uniform(0.2, 6.0)):
                self.hit("fetch", typed)
        self._finish(typed, words)

    def _moment(self, phase: str, typed: Typed) -> bool:
        """Let a while pass: from the start, or from when the job is told. False where the command has ended by itself."""
        give_up = time.monotonic() + 300
        while phase == "wait" and not JOB.search(typed.said()):
            if typed.ends_within(0.1):
                return False
            assert time.monotonic() < give_up, f"no job is told:\n{typed.said()}"
        return not typed.ends_within(self.chance.uniform(0.1, 5.0))

    def _again(self, typed: Typed, words: tuple[str, ...]) -> Typed:
        """What its user does: a command that was killed, or ended since nobody answers, is typed again."""
        code = typed.process.poll()
        if code is None or code == 0:
            return typed
        assert code in (-signal.SIGKILL, NOT_REACHED), typed.said()
        return self.laptop.slipway(*words)

    def _finish(self, typed: Typed, words: tuple[str, ...]) -> None:
        for _ in range(3):
            typed = self._again(typed, words)
            if typed.process.wait(600) == 0:
                return
        raise AssertionError(f"{' '.join(words)} does not end well:\n{typed.said()}")


def look(laptop: Laptop, place: Place) -> None:
    """Nothing is lost, nothing was done twice."""
    cluster, study = laptop.cluster, place.name
    words = "\n".join(f"--- {typed.process.args[10:]}: {typed.process.returncode}\n{typed.said()}" for typed in laptop.typed)
    jobs = cluster.exec("login", ["squeue", "--states=all", "--noheader", "--format=%j"]).stdout.split()
    assert len([name for name in jobs if name.startswith(f"slipway-{study}-")]) == 1, words
    runs, ids = [run for run, *_ in place.started()], {job for _, job, _ in place.started()}
    assert (len(runs), len(set(runs)), len(ids)) == (4, 4, 1), words
    assert len(list((Path(cluster.shared) / "slipway" / "studies").glob(f"{study}-*/[!.]*/{study}.yaml"))) == 1, words
    here, there = laptop.folder / "results" / study, place.results
    found = {path.relative_to(here) for path in here.rglob("*") if path.is_file()}
    assert len([path for path in found if path.name == "record.json"]) == len(list(there.glob("runs/*/record.json"))) == 4, words
    assert all((here / path).read_bytes() == (there / path).read_bytes() for path in found), words
    assert not (here / ".coming").exists(), words
    assert "Traceback" not in words


def play(cluster: Cluster, root: Path, *, cuts: int, seed: int, totp: bool = False) -> Counter[tuple[str, str]]:
    """Studies until `cuts` have hit; which did. `totp`: the login node asks for a second factor at each login. Raises AssertionError for
    what was lost or done twice."""
    laptop = Laptop(cluster, root, totp=totp)
    chance = random.Random(seed)  # noqa: S311 - no secret
    made = Cuts(laptop, cuts, chance)
    places: list[Place] = []
    try:
        for number in range(cuts + 1):
            places.append(Place(cluster, f"cut-{'totp-' if totp else ''}{seed}-{number}"))
            if number == 0:
                laptop.open(places[0].environ(RUN_S))
                laptop.slipway("setup", "--slipway", str(laptop.gate.directory / "slipway")).ended()
            laptop.bring(places[-1])
            made.through(places[-1].name)
            look(laptop, places[-1])
            sys.stdout.write(f"{made.made} cuts, {number + 1} studies whole\n")
            if made.made == cuts:
                return made.counts
    finally:
        laptop.close()
        for place in places:
            place.close()
    raise AssertionError(f"only {made.made} of {cuts} cuts hit a command at work: {made.counts}")
