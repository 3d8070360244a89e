"""Profile runs of PyTorch: what is traced and logged by Slipway's program, and by the helper in one of the user's own."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from base.process import CODE_ROOT
from tests.containers.frameworks.conftest import Program
from tests.containers.frameworks.preloaded import Preloaded
from workflow.report.profile.layers import BEGINNINGS

pytestmark = pytest.mark.slow
KEYS: dict[str, Any] = {
    "steps": {"warmup": 8, "measured": 3, "total": 11},
    "profile": {"of": "lenet", "logged": 6},
    "save_parameters": False,
}
LAYERS = ["conv1", "pool1", "conv2", "pool2", "flatten", "fc1", "relu1", "fc2"]


def ranges(out: Path, kind: str) -> list[tuple[str, float, float]]:
    """Name, begin and seconds of each range of this kind, in order."""
    trace = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))
    found = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation" and event["name"].startswith(f"{kind}:")]
    return sorted(((event["name"], event["ts"] / 1e6, event["dur"] / 1e6) for event in found), key=lambda one: one[1])


def told_steps(out: Path, rank: int = 0) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in (out / f"events-{rank}.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if line["event"] == "step"}


@pytest.mark.parametrize(("strategy", "mode"), [("ddp", "train"), ("fsdp2", "train"), ("ddp", "infer")])
def test_a_profile_run_traces_each_layer_of_the_measured_steps(run_program: Program, strategy: str, mode: str) -> None:
    done = run_program(2, strategy=strategy, mode=mode, **KEYS)
    assert done.exit_codes == [0, 0], done.stderr
    steps, layers = ranges(done.out, "step"), ranges(done.out, "layer")
    assert [name for name, _, _ in steps] == ["step:8", "step:9", "step:10"]
    assert [name for name, _, _ in layers] == [f"layer:{name}" for name in LAYERS] * 3
    for index, (_, begin, seconds) in enumerate(steps):
        inside = layers[index * len(LAYERS) : (index + 1) * len(LAYERS)]
        assert all(begin <= start and start + long <= begin + seconds for _, start, long in inside)
    assert not list(done.out.glob(".part-*"))
    assert (done.out / "exchange.json").exists() == (strategy == "ddp" and mode == "train")


def test_what_a_hook_computes_is_communication_and_no_backward_of_a_layer(run_program: Program) -> None:
    done = run_program(2, comm_hook="onebit", **KEYS)
    trace = json.loads(gzip.decompress((done.out / "trace.json.gz").read_bytes()))
    spans = [(one["name"], one["ts"], one["ts"] + one["dur"]) for one in trace["traceEvents"] if one.get("ph") == "X"]
    hooks = [span for span in spans if dict(BEGINNINGS).get(span[0][: len("c10d::")]) == "communication" and "comm_hook" in span[0]]
    compressing = [span for span in spans if span[0] == "aten::signbit"]
    assert compressing
    assert all(any(begin <= start and end <= until for _, begin, until in hooks) for _, start, end in compressing)


def test_the_losses_of_a_profile_run_are_those_of_any_other(run_program: Program) -> None:
    plain = run_program(2, steps=KEYS["steps"], save_parameters=False)
    profiled = run_program(2, **KEYS)
    assert not (plain.out / "trace.json.gz").exists()
    losses = [[step["loss"] for step in told_steps(done.out).values()] for done in (plain, profiled)]
    assert losses[0] == losses[1]


OWN = """
import os, sys, threading, time
import torch, torch.distributed as dist
import slipway_events
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(os.environ["RANK"]), world_size=2)
torch.set_num_threads(1)
comm_s, input_s = float(sys.argv[2]), float(sys.argv[3])
wide = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
network = torch.nn.Sequential(*wide, torch.nn.Linear(256, 10))
ddp = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.25)

def late(state, bucket):
    done = torch.futures.Future()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    def wait():
        work.wait()
        time.sleep(comm_s)
        done.set_result(bucket.buffer() / 2)
    threading.Thread(target=wait).start()
    return done

if comm_s:
    ddp.register_comm_hook(None, late)
optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
run = slipway_events.start(model=network)

def batches():
    while True:
        time.sleep(input_s if dist.get_rank() else 0.0)
        yield torch.randn(64, 256)

for batch in run.steps(batches()):
    optimizer.zero_grad()
    loss = ddp(batch).square().mean()
    loss.backward()
    optimizer.step()
    run.loss(loss)
run.finish()
"""


@pytest.mark.parametrize(("comm_s", "input_s"), [(0.03, 0.0), (0.0, 0.06)])
def test_the_log_of_the_exchange_closes_and_tells_a_slow_network_from_a_slow_rank(tmp_path: Path, comm_s: float, input_s: float) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "cell.json").write_text(json.dumps({"mode": "train", "device": "cpu", **KEYS}))
    lib = str(CODE_ROOT / "containers" / "lib")
    own = {"SLIPWAY_OUT": str(tmp_path), "SLIPWAY_CELL": str(tmp_path / "cell.json"), "PYTHONPATH": lib, "GLOO_SOCKET_IFNAME": "lo"}
    argv = [sys.executable, str(tmp_path / "own.py"), str(tmp_path / "meeting"), str(comm_s), str(input_s)]
    ranks = [Preloaded(argv, {**os.environ, **own, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]
    assert [rank.wait(240) for rank in ranks] == [0, 0]
    found = json.loads((tmp_path / "exchange.json").read_text())
    assert 0.9 <= found["closing_ratio"] <= 1.05, found  # 0.97 to 1.02 on a machine without other work
    assert (found["ranks"], found["steps"]) == (2, 5)
    assert sum(found["bucket_bytes"]) == 4 * (2 * (256 * 256 + 256) + 2570)
    assert found["exposed_s"] >= 0.9 * comm_s
    assert found["skew_s"] >= 0.4 * input_s  # rank 0 waits all of it, and rank 1 nothing
    assert [name for name, _, _ in ranges(tmp_path, "layer")] == [f"layer:{index}" for index in range(5)] * 3
    assert [name for name, _, _ in ranges(tmp_path, "step")] == ["step:8", "step:9", "step:10"]


def test_a_program_without_pytorch_says_that_it_has_no_profile(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import slipway_events\nfor batch in slipway_events.start().steps([[1], [2]]): pass\n")
    (tmp_path / "cell.json").write_text(json.dumps({"mode": "train", "device": "cpu", **KEYS}))
    lib = str(CODE_ROOT / "containers" / "lib")
    own = {"SLIPWAY_OUT": str(tmp_path), "SLIPWAY_CELL": str(tmp_path / "cell.json"), "PYTHONPATH": lib}
    subprocess.run([sys.executable, str(tmp_path / "own.py")], env={**os.environ, **own}, check=True, timeout=60)
    assert "no profile: it is made by the profiler of PyTorch" in (tmp_path / "events-0.jsonl").read_text()
    assert not (tmp_path / "trace.json.gz").exists()
