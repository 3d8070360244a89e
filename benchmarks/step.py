"""What our program adds to a training step: its median step time against that of bare_torchrun.py, same network, data and batches.

    python -m benchmarks.step [--batch 64] [--world 1] [--steps 120] [--repeats 5]

The two take turns on the same cores, so that what else the machine does hits both; the ratio is that of each pair, and the median pair
counts. Aim: 0.99 to 1.01, or less.

    python -m benchmarks.step --parts [--batch 64] [--steps 1200]

What telling the parts of a step adds to it: in one process, blocks of 10 steps of our program with its parts and 10 without, hooks
included, take turns, and the median difference counts, of wall time and of processor time, with its 95 % interval. Aim: at most 1 % of a
step of 5 ms by one of them. The parts of the mean step are printed with their residual. Aim: at most 5 %.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from containers.frameworks import framework_folders, load_framework
from containers.rank_variables import fill
from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec
from tests.containers.frameworks.conftest import environment, make_cell
from tests.ports import held_ports
from workflow.run.node.workdir import copy_library
from workflow.run.record.events import read_events
from workflow.run.record.step_parts import parts_of

ROOT = Path(__file__).parents[1]
WARMUP = 20
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
BLOCK = 25


def main() -> None:
    """Print one line per pair and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 64), ("world", 1), ("steps", 120), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "lib").mkdir()
        copy_library(work / "lib", [str(folder) for name in framework_folders() for folder in load_framework(name).library_folders])
        spec = parse_spec({"source": "sklearn-digits", "size": 32, "shards": 2, "splits": {}}, work)
        data = work / build_dataset(spec, "digits", work, jobs=1).path
        if options.parts:
            sys.stdout.write(told_parts(work, data, options))
            return
        ratios, quiet = [], []
        for pair in range(options.repeats):
            turns = [("ours", ours), ("bare", bare)]
            times = {name: sorted(run(work, data, options)) for name, run in (turns if pair % 2 == 0 else turns[::-1])}
            medians = {name: statistics.median(steps) for name, steps in times.items()}
            ratios.append(medians["ours"] / medians["bare"])
            quiet.append(tenth(times["ours"]) / tenth(times["bare"]))
            shown = ", ".join(f"{name} {medians[name] * 1e3:.2f} ms" for name in ("ours", "bare"))
            print(f"pair {pair + 1}: {shown}, ratio of medians {ratios[-1]:.4f}, of 10th percentiles {quiet[-1]:.4f}", flush=True)
    print(f"ratio of medians {spread(ratios)}; of 10th percentiles, where other load counts less, {spread(quiet)}")


def tenth(ordered: list[float]) -> float:
    """Return the 10th percentile of sorted values."""
    return ordered[len(ordered) // 10]


def spread(ratios: list[float]) -> str:
    """Return median and range over the pairs in words."""
    return f"{statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f}, {len(ratios)} pairs)"


def ours(work: Path, data: Path, options: argparse.Namespace) -> list[float]:
    """Return the seconds of the steps of rank 0 under our program, launcher `ranks`."""
    write_cell(work, data, options)
    spec = load_framework("pytorch")
    argv = [fill(word, {"python": sys.executable, "folder": str(spec.folder)}) for word in spec.command]
    (port,) = held_ports()
    environments = [{**environment(work, data, work / "lib", rank, options.world, port), **LOOPBACK} for rank in range(options.world)]
    ranks = [subprocess.Popen(argv, env=own) for own in environments]
    if any([rank.wait() for rank in ranks]):
        sys.exit("our program failed")
    events = map(json.loads, (work / "events-0.jsonl").read_text().splitlines())
    return [event["seconds"] for event in events if event["event"] == "step" and event["measured"]]


def bare(work: Path, data: Path, options: argparse.Namespace) -> list[float]:
    """Return the seconds of the same steps of bare_torchrun.py under torchrun."""
    times = work / "times.json"
    script = [str(ROOT / "benchmarks" / "bare_torchrun.py"), str(data), str(options.batch), str(options.steps + WARMUP), "1", str(times)]
    (port,) = held_ports()
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={options.world}", f"--master_port={port}"]
    subprocess.run([*torchrun, *script], env={**environment(work, data, work / "lib", 0, 1, port), **LOOPBACK}, check=True)
    found: list[float] = json.loads(times.read_text())
    return found[WARMUP:]


PARTS = """
import json, math, os, random, statistics, sys, time
import slipway_parts, slipway_reader, torch
from slipway_events import EventFile
from slipway_program.loop import Around, HostClock, Laps, run_steps
from slipway_program.plan import Steps
from slipway_program.torch_group import join_group
from slipway_pytorch.steps import make_network, make_training_step

BLOCK = 10
own, nothing = (Laps.begin, Laps.end, Laps.end_backward), (lambda self, *_: None,) * 3

class Never:
    def is_there(self):
        return False

torch.set_num_threads(1)
cell = json.load(open(os.environ["SLIPWAY_CELL"]))
dataset = slipway_reader.open_dataset(os.environ["SLIPWAY_DATA"])
device = join_group(cell)

def made(part_exchange):
    slipway_parts.part_exchange = part_exchange
    return make_training_step(cell, dataset, make_network(cell, dataset, device), device)[0]

ways = {"told": (made(slipway_parts.part_exchange), own), "plain": (made(lambda *_: None), nothing)}
images, labels = dataset.split("train").read_many(range(cell["batch_size"]))
batch = torch.from_numpy(images), torch.from_numpy(labels)
events = EventFile(os.environ["SLIPWAY_OUT"], 0)
around = Around(HostClock(), lambda: None, events, Never())

def block(first, name):
    step, (Laps.begin, Laps.end, Laps.end_backward) = ways[name]
    steps = Steps(first + BLOCK, first, first + BLOCK, first)
    wall, cpu = time.perf_counter(), time.thread_time()
    run_steps(steps, step, iter([batch] * BLOCK), around)
    return (time.perf_counter() - wall) / BLOCK, (time.thread_time() - cpu) / BLOCK

random.seed(0)
pairs, plain = [], []
for number in range(int(sys.argv[1]) // (2 * BLOCK)):
    turns = random.sample(sorted(ways), 2)
    took = {name: block(2 * number * BLOCK + place * BLOCK, name) for place, name in enumerate(turns)}
    if number:
        pairs.append([told - without for told, without in zip(took["told"], took["plain"])])
        plain.append(took["plain"])
for name, place in (("wall", 0), ("processor", 1)):
    middle, more = (statistics.median(row[place] for row in rows) for rows in (plain, pairs))
    ordered, reach = sorted(row[place] for row in pairs), math.ceil(0.98 * math.sqrt(len(pairs)))
    low, high = (ordered[max(0, min(len(pairs) - 1, len(pairs) // 2 + sign * reach))] for sign in (-1, 1))
    print("%s time: a step of %.3f ms, told parts add %+.1f us [%+.1f, %+.1f], %+.2f %% of 5 ms; %d pairs"
          % (name, middle * 1e3, more * 1e6, low * 1e6, high * 1e6, more / 5e-3 * 100, len(pairs)))
"""


def told_parts(work: Path, data: Path, options: argparse.Namespace) -> str:
    """Return what telling the parts adds to a step, and the parts of the mean step with their residual."""
    write_cell(work, data, options)
    paths = os.pathsep.join([str(work / "lib"), str(load_framework("pytorch").folder)])
    own = {**environment(work, data, work / "lib", 0, 1, *held_ports()), **LOOPBACK, "PYTHONPATH": paths}
    argv = [sys.executable, "-c", PARTS, str(options.steps)]
    told = subprocess.run(argv, env=own, check=True, stdout=subprocess.PIPE, text=True).stdout
    steps = [step for step in read_events(work, 1)[0].steps.values() if step.forward_s is not None]
    found = parts_of([dict(enumerate(steps[BLOCK:]))], range(len(steps) - BLOCK))
    assert found is not None
    names = ("input_s", "copy_s", "forward_s", "backward_s", "exposed_s", "skew_s", "optimizer_s", "other_s")
    rows = [f"{name[:-2]} {(getattr(found, name) or 0) * 1e3:.3f} ms" for name in names]
    return f"{told}{', '.join(rows)} of {found.step_s * 1e3:.3f} ms: residual {found.other_s / found.step_s:.1%}\n"


def write_cell(work: Path, data: Path, options: argparse.Namespace) -> None:
    """Write cell.json of the run."""
    steps = {"warmup": WARMUP, "measured": options.steps}
    cell = make_cell(data, options.world, global_batch_size=options.batch * options.world, steps=steps, save_parameters=False)
    (work / "cell.json").write_text(json.dumps(cell))


if __name__ == "__main__":
    main()
