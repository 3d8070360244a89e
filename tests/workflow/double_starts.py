"""Two starts of the same run at once, counted: `python -m tests.workflow.double_starts [--pairs 100] [--snakemakes 10] [--seed 0]`.

A pair of supervisors asks for any result of a run that has none, or for one later than a failed one; a pair of Snakemakes is typed in one
working directory or in two, plainly or with `retry=failed`. The second comes a random moment after the first, which may be after its end.
Wrong is a run that was trained twice, a record that was replaced, and a result without its record.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.workflow.run.world import World

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
STUDY = """
study: pairs
datasets:
  noise: {{source: synthetic, samples: 40, size: 32, channels: grey, shards: 2}}
base: {{framework: pytorch, dataset: noise, model: lenet, batch_size: 8, steps: {{warmup: 1, measured: 2}}, repeats: 2,
        optimizer: {{name: sgd, learning_rate: {rate}}}}}
axes: {{nodes: [1]}}
baseline: {{nodes: 1}}
"""
SITE = "{storage: storage, cache: {path: cache}, engine: bare, scheduler: local}\n"


def start_snakemake(place: Path, directory: Path, *config: str) -> subprocess.Popen[bytes]:
    """Start the study and the site of a place in a directory. Add what it prints to the file `output` of the place."""
    argv = [str(Path(sys.executable).parent / "snakemake"), "--profile", str(ROOT / "profiles" / "local"), "-s", str(ROOT / "Snakefile")]
    argv += ["--configfile", str(place / "study.yaml"), "--directory", str(directory), "--config", f"site={place / 'site.yaml'}", *config]
    with (place / "output").open("ab") as output:
        return subprocess.Popen(argv, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)


def wrong(run_dir: Path, results: int, before: Sequence[bytes] = ()) -> list[str]:
    """What is not as it must be: `results` results of the run, and the newest one's record. `before`: records that it may not have."""
    attempts = {int(path.parent.name): path.read_bytes() for path in run_dir.glob("attempts/*/record.json") if path.parent.name.isdecimal()}
    ended = {number: content for number, content in attempts.items() if json.loads(content)["kind"] == "result"}
    found = [f"{len(ended)} results, expected {results}: trained twice, or not"] if len(ended) != results else []
    record = run_dir / "record.json"
    if not record.exists():
        return [*found, "the record is lost"]
    if ended and record.read_bytes() != ended[max(ended)]:
        found.append("the record is not that of the newest result")
    if record.read_bytes() in before:
        found.append("the record is an old one")
    return found + [f"left: {path.name}" for path in run_dir.iterdir() if "lease" in path.name]


def supervisors(world: World, retry: bool, delay_s: float) -> list[str]:
    """One pair of supervisors on a run of its own; what was wrong, exit codes in front where they are."""
    run_id = world.cell(measured=3, do={"0": [3, "exit 3"]} if retry else {})
    before = []
    if retry:
        world.run(run_id)
        before = [(world.run_dir(run_id) / "record.json").read_bytes()]
    asked = f"{run_id}.after-1" if retry else run_id
    first = world.start(asked)
    time.sleep(delay_s)
    second = world.start(asked)
    codes = [process.wait(LIMIT_S) for process in (first, second)]
    problems = wrong(world.run_dir(run_id), 2 if retry else 1, before) + [problem for problem in world.left() if "waits" not in problem]
    return problems + ([f"exit codes {codes}"] if codes != [0, 0] else [])


class Place:
    """A study whose working directories share one storage."""

    def __init__(self, path: Path, retry: bool) -> None:
        self.path = path
        (path / "study.yaml").write_text(STUDY.format(rate="1.0e+30" if retry else "0.01"))
        (path / "site.yaml").write_text(SITE)
        self.results = path / "storage" / "results" / "pairs"

    def start(self, directory: str, retry: bool) -> subprocess.Popen[bytes]:
        (self.path / directory).mkdir(exist_ok=True)
        return start_snakemake(self.path, self.path / directory, *(["retry=failed"] if retry else []))

    def run(self, directory: str, retry: bool) -> int:
        return self.start(directory, retry).wait(LIMIT_S)


def snakemakes(place: Place, two: bool, retry: bool, delay_s: float) -> list[str]:
    """One pair of whole Snakemakes, then a plain one in each directory, which must find all done."""
    if retry and place.run("one", retry=False):
        return ["the first Snakemake failed"]
    before = [path.read_bytes() for path in place.results.glob("runs/*/record.json")]
    first = place.start("one", retry)
    time.sleep(delay_s)
    second = place.start("two" if two else "one", retry)
    for process in (first, second):
        process.wait(LIMIT_S)
    for directory in ("one", "two") if two else ("one",):
        if place.run(directory, retry=False):
            return ["a Snakemake after the pair failed"]
    run_dirs = sorted((place.results / "runs").iterdir())
    problems = [problem for run_dir in run_dirs for problem in wrong(run_dir, 2 if retry else 1, before)]
    return problems + ([f"{len(run_dirs)} runs, expected 2"] if len(run_dirs) != 2 else [])


def main() -> int:
    """Count; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--snakemakes", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dice, found = random.Random(arguments.seed), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="slipway-pairs-") as scratch:
        for index in range(arguments.pairs):
            (path := Path(scratch, f"w{index}")).mkdir()
            world = World(path)
            said = supervisors(world, retry=index % 2 == 1, delay_s=dice.choice((0, dice.uniform(0, 3))))
            world.close()
            _count(found, f"supervisors {index}", said)
        for index in range(arguments.snakemakes):
            (path := Path(scratch, f"s{index}")).mkdir()
            said = snakemakes(Place(path, retry=index % 2 == 1), index % 4 > 1, index % 2 == 1, dice.choice((0, dice.uniform(0, 8))))
            _count(found, f"snakemakes {index}", said)
    said = f"{arguments.pairs} pairs of supervisors, {arguments.snakemakes} of Snakemakes, seed {arguments.seed}: {dict(found)}"
    sys.stdout.write(f"{said}\n")
    return 1 if set(found) - {"right"} else 0


def _count(found: Counter[str], what: str, said: Sequence[str]) -> None:
    found["wrong" if said else "right"] += 1
    for problem in said:
        sys.stdout.write(f"{what}: {problem}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
