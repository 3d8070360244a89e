"""One bit with error feedback against whole gradients: bytes that are sent, and the loss after 200 steps, of two ranks.

    python -m benchmarks.onebit [--models lenet resnet18] [--hooks onebit] [--steps 200] [--rate 0.01] [--batch 16]

Each network is trained from the same weights on the same batches of handwritten digits with `comm_hook: none` and with each hook, with two
ranks of PyTorch's program on this machine. The loss is the mean over both ranks and the last 20 steps. Aim: within 2 % of plain. The bytes
are those that the kernel sends over the loopback interface of a network namespace of the two ranks' own, all protocols and the other
messages of the run with them; without user namespaces they are not counted. Aim: 1/32 of plain's, and the means of blocks: 1/31.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from containers.frameworks import load_framework
from containers.renderings import fill
from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec
from tests.containers.frameworks.conftest import environment, free_ports, make_cell
from workflow.run.node.workdir import copy_library
from workflow.run.record.events import read_events

LAST = 20
RANKS = 2
OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net")
ENABLE = ("ip", "link", "set", "lo", "up")
ALL_RANKS = f"""
{" ".join(ENABLE)}
for rank in {" ".join(map(str, range(RANKS)))}; do RANK=$rank LOCAL_RANK=$rank "$@" & pids="$pids $!"; done
for pid in $pids; do wait $pid || exit 1; done
awk '/lo:/ {{print $10}}' /proc/net/dev >"$SLIPWAY_OUT/sent"
"""


def main() -> int:
    """Print a line per network and hook. The exit code: 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["lenet", "resnet18"])
    parser.add_argument("--hooks", nargs="+", default=["onebit"])
    for name, kind, default in (("steps", int, 200), ("rate", float, 0.01), ("batch", int, 16)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "lib").mkdir()
        copy_library(work / "lib")
        spec = parse_spec({"source": "sklearn-digits", "size": 32, "shards": 2, "splits": {}}, work)
        data = work / build_dataset(spec, "digits", work, jobs=1).path
        for model in options.models:
            plain, plain_bytes = trained(work, data, model, "none", options)
            for hook in options.hooks:
                loss, sent = trained(work, data, model, hook, options)
                apart = loss / plain - 1
                missed += hook == "onebit" and abs(apart) > 0.02
                sizes = f"; {sent / 1e6:.1f} MB sent, 1/{plain_bytes / sent:.1f} of plain" if sent and plain_bytes else ""
                print(f"{model}: loss {loss:.4f} with {hook}, {plain:.4f} plain: {apart:+.2%}{sizes}", flush=True)
    return 1 if missed else 0


def trained(work: Path, data: Path, model: str, hook: str, options: argparse.Namespace) -> tuple[float, int | None]:
    """Return the loss at the end, and the bytes that were sent; None: they cannot be counted here."""
    optimizer = {"name": "sgd", "learning_rate": options.rate, "momentum": 0.9, "weight_decay": 0.0}
    keys = {"comm_hook": hook, "optimizer": optimizer, "steps": {"warmup": 0, "measured": options.steps}, "save_parameters": False}
    (work / "cell.json").write_text(json.dumps(make_cell(data, RANKS, model, options.batch * RANKS, **keys)))
    spec = load_framework("pytorch")
    argv = [fill(word, {"python": sys.executable, "folder": str(spec.folder)}) for word in spec.command]
    counted = subprocess.run([*OWN_NETWORK, *ENABLE], check=False, capture_output=True).returncode == 0
    own = {**environment(work, data, work / "lib", 0, RANKS, *free_ports(1)), "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([*(OWN_NETWORK if counted else ()), "sh", "-c", ALL_RANKS, "sh", *argv], env=own, check=True)
    steps = [step for rank in read_events(work, RANKS).values() for number, step in rank.steps.items() if number >= options.steps - LAST]
    return statistics.fmean([step.loss for step in steps if step.loss is not None]), int((work / "sent").read_text()) if counted else None


if __name__ == "__main__":
    sys.exit(main())
