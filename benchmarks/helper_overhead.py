"""What slipway_events adds to a step of 5 ms, and whether a script has the same steps by hand and under Slipway.

    python -m benchmarks.helper_overhead [--pairs 60] [--steps 600] [--repeats 5] [--limit-s 150] [--only helper slipway torchrun]
        [--device cuda]

`helper`: in one process, on one core, 25 steps of a plain loop and 25 of `run.steps` take turns, in random order; each pair has a
difference, and the median difference counts: of wall time, and of processor time, which hears less of what else the machine does. Aim: at
most 1 % of the step by one of them. What it does between two steps is told beside it, which other work on the machine hardly changes; that
it takes room in the caches is not in it.

`slipway`: a script by hand and in a run of Slipway take turns, and each tells the median of its steps. `torchrun`: the same with two ranks
of DDP that a torchrun starts. Aim: the median difference is at most 1 %, or at most the largest one between two times by hand that had a
run between them. Of `--repeats` turns as many are begun as `--limit-s` leaves room for, so that each part ends within three minutes on a
quiet machine; how loaded it was is told first. The exit code is 1 where an aim is missed.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "containers" / "lib"
STEP_S = 0.005
BLOCK = 25
AIM = 0.01
QUIET = 2.0
NOT_INTERRUPTED = 0.98
"""Of the short times between steps; the few longest are those in which this process had to wait for a core."""
TRAINING = """
import torch

torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to("DEVICE")
optimizer = torch.optim.SGD(net.parameters(), 0.01)
images, labels = torch.randn(32, 64, device="DEVICE"), torch.randint(0, 10, (32,), device="DEVICE")

def step(times):
    for _ in range(times):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    return loss

def wait():
    torch.cuda.synchronize() if "DEVICE" == "cuda" else None
"""
SCRIPT = (
    TRAINING
    + """
import json, os, statistics, sys, time
import slipway_events

rank = int(os.environ.get("RANK", 0))
if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    torch.distributed.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(net)
run, ended = slipway_events.start(), [time.perf_counter()]
for batch in run.steps([32] * int(sys.argv[2]), samples=32):
    run.loss(step(int(sys.argv[1])))
    ended.append(time.perf_counter())
if rank == 0:
    json.dump(statistics.median(after - before for before, after in zip(ended[20:], ended[21:])), open("median.json", "w"))
"""
)
STUDY = """
study: helper
programs:
  script: {folder: train, command: ["{python}", "{folder}/train.py", "%d", "%d"], launcher: %s}
base: {program: script, batch_size: 32, threads: 1, gpus_per_node: %d, steps: {warmup: 20, measured: %d}, repeats: %d}
axes: {nodes: [1]}
"""
WAITED: list[Callable[[], Any]] = []
"""For whom a time ends: a GPU that computes later."""
LAUNCHED = {"slipway": ("single", 1, 1), "torchrun": ("torchrun", 2, 4)}
"""Launcher, ranks, and by how much fewer times each step computes: an exchange of gradients takes as long as some of them."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=600, help="of each training of slipway and torchrun")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=150.0, help="how long turns of slipway, and of torchrun, may go on")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", nargs="+", choices=["helper", *LAUNCHED], default=["helper", *LAUNCHED])
    options = parser.parse_args()
    training: dict[str, Any] = {}
    exec(TRAINING.replace("DEVICE", options.device), training)
    step: Callable[[int], Any] = training["step"]
    times = max(1, round(STEP_S / statistics.median(seconds_of(lambda: step(1))[1] for _ in range(300))))
    WAITED.append(training["wait"])
    missed = False
    load = os.getloadavg()[0]
    print(f"load of this machine {load:.1f}{': not quiet, so these are no figures to quote' if load >= QUIET else ''}", flush=True)
    for part in options.only:
        with tempfile.TemporaryDirectory() as name:
            if part == "helper":
                missed |= helper(Path(name), lambda: step(times), options.pairs, options.device)
            else:
                missed |= by_hand_and_in_runs(Path(name), part, times, options)
    sys.exit(missed)


def seconds_of(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall time of a call, and processor time of this thread."""
    start = time.perf_counter(), time.thread_time()
    call()
    for wait in WAITED:
        wait()
    return time.perf_counter() - start[0], time.thread_time() - start[1]


def helper(place: Path, step: Callable[[], Any], pairs: int, device: str) -> bool:
    """Print what the helper adds to a step; whether that is more than the aim by both clocks."""
    (place / "cell.json").write_text(
        json.dumps({"steps": {"warmup": 0, "measured": pairs * BLOCK + 1}, "batch_size": 32, "device": device})
    )
    os.environ.update(SLIPWAY_OUT=str(place), SLIPWAY_CELL=str(place / "cell.json"))
    sys.path.insert(0, str(LIBRARY))
    import slipway_events

    run = slipway_events.start()
    plain, told = iter([32] * (pairs * BLOCK)), run.steps([32] * 100, samples=32)
    between: dict[Callable[[], None], list[float]] = {}

    def by_hand() -> None:
        for _ in range(BLOCK):
            loss = step()
            begin = time.perf_counter()
            del loss
            next(plain)
            between[by_hand].append(time.perf_counter() - begin)

    def with_helper() -> None:
        for _ in range(BLOCK):
            loss = step()
            begin = time.perf_counter()
            run.loss(loss)
            del loss
            next(told)  # tells of the step
            between[with_helper].append(time.perf_counter() - begin)

    next(told)
    between.update({by_hand: [], with_helper: []})
    rows = []
    for _ in range(pairs):
        pair = [by_hand, with_helper]
        random.shuffle(pair)
        found = {call: seconds_of(call) for call in pair}
        rows.append((found[by_hand], found[with_helper]))
    shares = []
    for index, clock in enumerate(("wall", "processor")):
        bare = statistics.median(row[0][index] for row in rows) / BLOCK
        added = statistics.median(row[1][index] - row[0][index] for row in rows) / BLOCK
        shares.append(added / bare)
        print(f"{clock} time of a step {bare * 1e3:.3f} ms, slipway_events adds {added * 1e6:.0f} us, {added / bare:.2%}")
    alone, told_s = (statistics.fmean(sorted(found)[: int(len(found) * NOT_INTERRUPTED)]) for found in between.values())
    print(
        f"between two steps {told_s * 1e6:.1f} us, by hand {alone * 1e6:.1f} us: its own code takes {(told_s - alone) / bare:.2%} of a step"
    )
    return min(shares) > AIM


def by_hand_and_in_runs(place: Path, part: str, times: int, options: argparse.Namespace) -> bool:
    """Print the median step of a script by hand, in a run and by hand again, in turns; whether the run's differs by more than the aim."""
    from workflow.run.plan import supervisor_argv
    from workflow.study.publishing import publish_resolved
    from workflow.study.study import load_study

    steps, repeats, device = options.steps, options.repeats, options.device
    (place / "train").mkdir()
    script = place / "train" / "train.py"
    script.write_text(SCRIPT.replace("DEVICE", device))
    launcher, ranks, fewer = LAUNCHED[part]
    times = max(1, times // fewer)
    (place / "study.yaml").write_text(STUDY % (times, steps + 20, launcher, ranks, steps, repeats))
    (place / "site.yaml").write_text(f"{{storage: storage, cache: {{path: cache}}, engine: bare, scheduler: local, device: {device}}}\n")
    study = load_study(place / "study.yaml", str(place / "site.yaml"))
    publish_resolved(study)
    alone = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    environment = {**alone, "PYTHONPATH": str(LIBRARY), "OMP_NUM_THREADS": "1"}
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []

    def by_hand() -> float:
        started([sys.executable, *several, str(script), str(times), str(steps + 20)], place, environment)
        return float((place / "median.json").read_text())

    def in_a_run(run_id: str) -> float:
        started(list(supervisor_argv(sys.executable, str(study.results_dir), run_id)), ROOT, alone)
        (found,) = (study.results_dir / "runs" / run_id / "attempts").glob("*/**/median.json")
        return float(found.read_text())

    rows: list[tuple[float, float, float]] = []
    began = time.monotonic()
    for run in study.runs:
        if rows and (time.monotonic() - began) * (len(rows) + 1) / len(rows) > options.limit_s:
            break
        rows.append((by_hand(), in_a_run(run.run_id), by_hand()))
    for label, column in zip(("by hand", "under Slipway", "by hand again"), zip(*rows, strict=True), strict=True):
        print(f"{label:>14}: median step {statistics.median(column) * 1e3:.3f} ms ({min(column) * 1e3:.3f} to {max(column) * 1e3:.3f})")
    under = statistics.median(2 * row[1] / (row[0] + row[2]) - 1 for row in rows)
    again = [row[2] / row[0] - 1 for row in rows]
    print(f"{part}: under Slipway {under:+.2%} (median of {len(rows)}); by hand again {statistics.median(again):+.2%}", end=", ")
    print(f"from {min(again):+.2%} to {max(again):+.2%}")
    return abs(under) > max(AIM, *map(abs, again))


def started(argv: list[str], place: Path, environment: dict[str, str]) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run(argv, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    main()
