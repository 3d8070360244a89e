"""How often the verdict on what bounds a run is right, and how far a what-if is from what a removal brings: real runs with injected faults.

    python -m benchmarks.bounds [--repeats 3] [--steps 60] [--batch 64] [--device-ms 0] [--network tbf|delay] [--save FILE]

Two ranks of the built-in PyTorch program train LeNet, with one fault each: a reader that is slow for itself or for its disk, a network
with little bandwidth (`tbf`: two network namespaces, which needs root) or with a delay (`delay`), one slow rank, slow compute on both;
each so strong that it has 25, 40, 55 or 70 % of the step. Runs without a fault, and without an exchange, lie between them, and all are in a
random order. Each run is judged alone, by the code of the report. The share that a fault really has is 1 - step without it / step with
it, measured. Prints a confusion table, and the error of the step that the what-if predicts without the part: without the network's, against
the longest rank of each step without an exchange, since ranks wait for each other however fast a network is.

Aims: 95 % right where the share is 20 % or more; no fault seen where there is none, but for an exchange that by the runs without one has
enough of the step; errors of at most 10 % for input and 25 % for communication (median). Exit code 1 otherwise. On a machine that others
use, `--batch 8 --device-ms 60` has little that they can slow down.
"""

import argparse
import contextlib
import gzip
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from containers.frameworks import framework_folders, load_framework
from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec
from tests.containers.frameworks.conftest import environment, make_cell
from tests.ports import held_ports
from workflow.report.bounds import MIN_SHARE, bound_of
from workflow.run.node.workdir import copy_library
from workflow.run.record.events import read_events
from workflow.run.record.machine_load import file_name, load_of, read_watched, whole_span
from workflow.run.record.model import Load, Performance
from workflow.run.record.rate import moments, performance, window_of

RANKS: Final = 2
WARMUP: Final = 5
SHARES: Final = (0.25, 0.4, 0.55, 0.7)
RIGHT: Final = {
    "input": "input",
    "disk": "input",
    "network": "communication",
    "rank": "stragglers",
    "compute": "compute",
    "none": "compute",
}
"""Fault -> the verdict."""
AIM: Final = 0.95
COUNTED: Final = 0.2
ERRORS: Final = {"input": ("if_no_input_s", 0.1), "disk": ("if_no_input_s", 0.1), "network": ("if_no_exposed_s", 0.25)}
FILE_BYTES: Final = 256 << 20
GRADIENT_BYTES: Final = 4 * 656_080
TIMEOUT_S: Final = 300
ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`seconds` of each step are added, or of `input` and `disk` are the least of a batch."""

    kind: str
    share: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs are made: directories, and the namespaces of the ranks, if there are any."""

    work: Path
    data: Path
    spaces: tuple[str, ...]
    batch: int
    steps: int
    device_s: float


def faults(step_s: float) -> list[Fault]:
    """Return every fault at every strength, by the mean step without any; three runs without one, and two without an exchange."""
    found = []
    for share in SHARES:
        whole = step_s / (1 - share)
        found += [Fault(kind=kind, share=share, seconds=whole) for kind in ("input", "disk")]
        found += [Fault(kind=kind, share=share, seconds=whole - step_s) for kind in ("network", "rank", "compute")]
    return [Fault(kind="none"), Fault(kind="noop"), *found, *[Fault(kind="none")] * 2, Fault(kind="noop")]


def run(place: Place, fault: Fault, number: int) -> dict[str, Any]:
    """Return a run's columns of records.parquet as far as its verdict needs them, and its wall time by step as `step_s`."""
    out = place.work / f"run-{number}"
    out.mkdir()
    steps = {"warmup": WARMUP, "measured": place.steps}
    keys: dict[str, Any] = {"nodes": RANKS, "gpus_per_node": 1, "steps": steps, "save_parameters": False}
    keys["comm_hook"] = "noop" if fault.kind == "noop" else "none"
    cell = make_cell(place.data, RANKS, global_batch_size=RANKS * place.batch, **keys)
    with contextlib.ExitStack() as ended:
        if fault.kind == "network" and place.spaces:
            ended.enter_context(limited(place.spaces, GRADIENT_BYTES / fault.seconds))
        with open(out / file_name(0), "wb") as lines:
            watcher = subprocess.Popen([sys.executable, "-m", "cluster.load", "--cores", "0,1"], stdout=lines, cwd=ROOT)
        ended.callback(watcher.wait)
        ended.callback(watcher.send_signal, signal.SIGTERM)
        train(place, fault, out, cell, RANKS)
    events = read_events(out, RANKS)
    found = performance(events, RANKS, RANKS * place.batch)
    window = window_of(events, RANKS, "train")
    watched = read_watched(out / file_name(0))
    assert found is not None
    assert window is not None
    assert watched is not None
    span = whole_span([moments(rank.steps, own) for rank, own in zip(window.ranks, window.own, strict=True)])
    return columns(found, load_of(watched, span))


def train(place: Place, fault: Fault, out: Path, cell: dict[str, Any], world: int) -> None:
    """Let so many ranks train a cell with a fault; their files go to `out`."""
    (out / "cell.json").write_text(json.dumps(cell))
    kind = "delay" if fault.kind == "network" and not place.spaces else fault.kind
    (port,) = held_ports()
    folder = str(load_framework("pytorch").folder)
    ranks = []
    for rank in range(world):
        env = environment(out, place.data, place.work / "lib", rank, world, port)
        env |= {
            "SLIPWAY_FAULT": f"{kind} {fault.seconds} {place.device_s}",
            "SLIPWAY_FAULT_FILE": str(place.work / "file"),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        env |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": str(rank)}
        inside: list[str] = []
        if place.spaces:
            env |= {"MASTER_ADDR": address(0), "GLOO_SOCKET_IFNAME": "eth0"}
            inside = ["ip", "netns", "exec", place.spaces[rank]]
        argv = [*inside, sys.executable, str(ROOT / "benchmarks" / "faulty_rank.py"), folder]
        ranks.append(subprocess.Popen(argv, env=env, cwd=out, start_new_session=True))
    codes = [rank.wait(timeout=TIMEOUT_S) for rank in ranks]
    if any(codes):
        raise SystemExit(f"{fault}: the ranks ended with {codes}")


def columns(found: Performance, load: Load) -> dict[str, Any]:
    """Return what a verdict is made of, as records.parquet has it."""
    if_s, during = found.what_if, load.during
    if if_s is None or found.window_s is None:
        raise SystemExit("the program does not tell the parts of its steps")
    of_load = {"io_wait_ratio": during and during.io_wait_ratio, "faults_per_s": during and (during.major_faults or 0) / during.seconds}
    return {
        **{f"if_{name}": getattr(if_s, name) for name in ("step_s", "no_input_s", "no_copy_s", "no_exposed_s", "no_skew_s", "no_other_s")},
        **{"slow_part": if_s.slow_part, "straggler_rank": found.straggler_rank, "hosts": "node00,node01", "gpus_per_node": 1},
        **{"num_processes": RANKS, "mode": "train", "gpu_busy_ratio": None, **of_load},
        "step_s": found.window_s / found.num_measured_steps,
    }


# Two network namespaces with a cable between them.


def address(rank: int) -> str:
    """Return the address of a rank's end."""
    return f"10.213.0.{rank + 1}"


@contextlib.contextmanager
def spaces() -> Iterator[tuple[str, ...]]:
    """Make a namespace for each rank, which are gone at the end."""
    names = tuple(f"bounds-{os.getpid()}-{rank}" for rank in range(RANKS))
    with contextlib.ExitStack() as ended:
        for name in names:
            ip("netns", "add", name)
            ended.callback(ip, "netns", "delete", name)
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for rank, name in enumerate(names):
            ip("-n", name, "address", "add", f"{address(rank)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                ip("-n", name, "link", "set", link, "up")
        yield names


@contextlib.contextmanager
def limited(names: tuple[str, ...], bytes_per_s: float) -> Iterator[None]:
    """Limit the bandwidth of both directions. The bucket holds 2 ms."""
    burst = max(32768, int(bytes_per_s * 0.002))
    for name in names:
        limit = ("rate", f"{int(8 * bytes_per_s)}bit", "burst", str(burst), "latency", "400ms")
        subprocess.run(["tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf", *limit], check=True)
    yield
    for name in names:
        subprocess.run(["tc", "-n", name, "qdisc", "delete", "dev", "eth0", "root"], check=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


# The judgement.


def report(runs: list[tuple[Fault, dict[str, Any]]]) -> list[str]:
    """Print the tables, and return the aims that were missed."""
    even = statistics.median([row["step_s"] for fault, row in runs if fault.kind == "none"])
    silent, waiting = (statistics.median([row[name] for fault, row in runs if fault.kind == "noop"]) for name in ("step_s", "if_step_s"))
    table: dict[str, Counter[str]] = {kind: Counter() for kind in RIGHT}
    counted, right = 0, 0
    errors: dict[str, list[float]] = {}
    for fault, row in runs:
        if fault.kind == "noop":
            continue
        found = bound_of([row])
        disk = any(note.startswith("its disk") for note in found.notes)
        verdict = "input, by its disk" if found.verdict == "input" and disk else found.verdict
        share = 1 - even / row["step_s"] if fault.kind != "none" else 0.0
        is_right = found.verdict == RIGHT[fault.kind] and disk == (fault.kind == "disk")
        if share >= COUNTED:
            counted, right = counted + 1, right + is_right
        table[fault.kind][verdict if share >= COUNTED or fault.kind == "none" else f"({verdict})"] += 1
        shown = f"{found.share:.0%}" if found.share is not None else "-"
        wrong = "" if is_right else "   WRONG"
        waited = row["io_wait_ratio"]
        asked = f"{fault.kind:8} {fault.share:4.0%} asked {share:5.0%} real"
        print(f"{asked} {1000 * row['step_s']:7.1f} ms  {verdict} {shown} io {waited}{wrong}")
        if fault.kind in ERRORS and share >= COUNTED:
            errors.setdefault(fault.kind, []).append(row[ERRORS[fault.kind][0]] / (waiting if fault.kind == "network" else even) - 1)
    print(f"step without a fault {1000 * even:.1f} ms, without an exchange {1000 * silent:.1f} ms, which has {1 - silent / even:.0%} of it")
    for kind, verdicts in table.items():
        print(f"{kind:8} is {RIGHT[kind]:14} found: {', '.join(f'{count} {verdict}' for verdict, count in verdicts.most_common())}")
    missed = []
    print(f"right: {right} of {counted} with a real share of {COUNTED:.0%} or more; in parentheses: less")
    if counted and right < AIM * counted:
        missed.append(f"right in {right / counted:.0%}")
    allowed = {RIGHT["none"]} | ({"communication"} if 1 - silent / even >= MIN_SHARE else set())
    if not allowed.issuperset(table["none"]):
        missed.append("a fault was seen where there is none")
    for kind, values in errors.items():
        middle, most = statistics.median(map(abs, values)), max(values, key=abs)
        print(f"{kind:8} step predicted without it: median error {middle:.1%}, worst {most:+.1%}, aim {ERRORS[kind][1]:.0%}")
        if middle > ERRORS[kind][1]:
            missed.append(f"what-if of {kind} off by {middle:.0%}")
    return missed


def main() -> int:
    """Make all runs, print the tables, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="of each rank")
    parser.add_argument("--device-ms", type=float, default=0.0, help="each forward sleeps so long, as if for a device: on a busy machine")
    parser.add_argument("--network", choices=("tbf", "delay"), default="tbf" if os.geteuid() == 0 else "delay")
    parser.add_argument("--most", type=int, help="so many runs of a repeat, for a test of this program")
    parser.add_argument("--save", type=Path, help="write what the verdicts were made of, as JSON in gzip")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as ended:
        work = Path(directory)
        spec = parse_spec({"source": "synthetic", "size": 32, "samples": 2048, "classes": 10, "shards": 2, "splits": {}}, work)
        data = work / build_dataset(spec, "images", work, jobs=1).path
        (work / "lib").mkdir()
        copy_library(work / "lib", [str(folder) for name in framework_folders() for folder in load_framework(name).library_folders])
        (work / "file").write_bytes(os.urandom(1 << 20) * (FILE_BYTES >> 20))
        names = ended.enter_context(spaces()) if options.network == "tbf" else ()
        own = {"batch": options.batch, "steps": options.steps, "device_s": options.device_ms / 1000}
        place = Place(work=work, data=data, spaces=names, **own)
        step_s = min(run(place, Fault(kind="none"), number)["step_s"] for number in range(2))
        print(f"mean step {1000 * step_s:.1f} ms; the network's fault is {'bandwidth' if names else 'a delay'}", flush=True)
        runs: list[tuple[Fault, dict[str, Any]]] = []
        for repeat in range(options.repeats):
            asked = faults(step_s)[: options.most]
            for fault in random.Random(repeat).sample(asked, len(asked)):
                runs.append((fault, run(place, fault, 2 + len(runs))))
                print(end=".", flush=True)
        print()
    if options.save is not None:
        saved = [{"kind": fault.kind, "share": fault.share, **row} for fault, row in runs]
        options.save.write_bytes(gzip.compress(json.dumps(saved, indent=1).encode(), mtime=0))
    missed = report(runs)
    for words in missed:
        print(f"missed: {words}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
