"""Rates and checksums that slipway_events reports of programs on a GPU, beside what these programs find by a clock of their own.

A program hands over steps and waits for none of them: PyTorch, JAX, and a kernel that no framework started, of which the helper knows
nothing, or CuPy's, on which it can wait for the device.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from base.process import CODE_ROOT
from tests.containers.frameworks.programs import interpreter
from tests.containers.test_steps_in_flight import footnotes
from tests.gpu import NEEDS_GPU
from workflow.run.record.events import read_events
from workflow.run.record.model import Performance
from workflow.run.record.rate import performance

pytestmark = [pytest.mark.slow, NEEDS_GPU]
BATCH, WARMUP = 32, 10
AHEAD = "because its first steps were short"
HEAD = f"""
import ctypes, json, sys, time
import slipway_events

MEASURED = int(sys.argv[1])

def report(seconds, **found):
    print(json.dumps(dict(found, seconds=seconds)))

def numbers(run):
    return enumerate(run.steps(range(10**6), samples={BATCH}))

"""
ON_TORCH = (
    HEAD
    + f"""
import torch

torch.backends.cuda.matmul.allow_tf32 = False
net = torch.nn.Linear(4096, 4096, device="cuda")
net.extra = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
images = torch.randn(8192, 4096, device="cuda")
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
run = slipway_events.start(model=net)
for number, _ in numbers(run):
    if number == {WARMUP}:
        begin.record()
    with torch.no_grad():
        net(images)
    if number == {WARMUP} + MEASURED - 1:
        end.record()
end.synchronize()
report(begin.elapsed_time(end) / 1000 / MEASURED, checksum=slipway_events.checksum_of(net.cpu()))
"""
)
ON_JAX = (
    HEAD
    + """
from functools import partial
import jax, jax.numpy as jnp

jax.config.update("jax_default_matmul_precision", "highest")

@partial(jax.jit, donate_argnums=0)
def step(weights):
    return {"weights": jnp.tanh(weights["weights"] @ weights["weights"])}

def timed(steps):
    global weights
    jax.block_until_ready(weights)
    begin = time.perf_counter()
    for _ in range(steps):
        weights = step(weights)
    jax.block_until_ready(weights)
    return (time.perf_counter() - begin) / steps

weights = step({"weights": jax.random.normal(jax.random.key(0), (4096, 4096))})
timed(300)
before = timed(200)
run = slipway_events.start(model=lambda: weights)
for _ in numbers(run):
    weights = step(weights)
trained = slipway_events.checksum_of(lambda: jax.device_put(weights, jax.devices("cpu")[0]))
report((before + timed(200)) / 2, checksum=trained)
"""
)
SPIN = r"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 duration) {
    .reg .u64 %r<5>;
    .reg .pred %p;
    ld.param.u64 %r1, [duration];
    mov.u64 %r2, %globaltimer;
more:
    mov.u64 %r3, %globaltimer;
    sub.u64 %r4, %r3, %r2;
    setp.lt.u64 %p, %r4, %r1;
    @%p bra more;
    ret;
}
"""
STEP_S = 0.004
BY_HAND = (
    HEAD
    + f"""
from collections import deque

if sys.argv[2] == "cupy":
    import cupy
cuda = ctypes.CDLL("libcuda.so.1")

def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)

device, context, module, spin = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ctypes.byref(module), {SPIN.encode()!r} + bytes(1))
call("cuModuleGetFunction", ctypes.byref(spin), module, b"spin")
duration = ctypes.c_uint64({int(STEP_S * 1e9)})
arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(duration), ctypes.c_void_p))
in_flight = deque()
run = slipway_events.start()
for _ in numbers(run):
    ended = ctypes.c_void_p()
    call("cuLaunchKernel", spin, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
    call("cuEventCreate", ctypes.byref(ended), 2)
    call("cuEventRecord", ended, None)
    in_flight.append(ended)
    if len(in_flight) > 32:
        ended = in_flight.popleft()
        call("cuEventSynchronize", ended)
        call("cuEventDestroy_v2", ended)
call("cuCtxSynchronize")
report({STEP_S})
"""
)


def measured(path: Path, python: str, program: str, steps: int, *words: str) -> tuple[Performance, dict[str, Any], str | None]:
    """Return the record's `performance` of a program, what it found by itself, and its checksum in the events."""
    (path / "program.py").write_text(program)
    cell = {"steps": {"warmup": WARMUP, "measured": steps}, "batch_size": BATCH, "device": "cuda"}
    (path / "cell.json").write_text(json.dumps(cell))
    variables = {"SLIPWAY_CELL": str(path / "cell.json"), "SLIPWAY_OUT": str(path), "PYTHONPATH": str(CODE_ROOT / "containers" / "lib")}
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **variables}
    argv = [python, str(path / "program.py"), str(steps), *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    events = read_events(path, 1)
    found = performance(events, 1, BATCH)
    assert found is not None
    stop = json.loads((path / "events-0.jsonl").read_text().splitlines()[-1])
    return found, json.loads(done.stdout.splitlines()[-1]), stop.checksum


@pytest.mark.parametrize("steps", [50, 200])
@pytest.mark.parametrize("framework", ["pytorch", "jax"])
def test_a_program_that_waits_for_no_step_has_its_true_rate_and_the_checksum_of_its_parameters(
    tmp_path: Path, framework: str, steps: int
) -> None:
    python, program = (sys.executable, ON_TORCH) if framework == "pytorch" else (interpreter("jax"), ON_JAX)
    found, own, checksum = measured(tmp_path, python, program, steps)
    assert found.samples_per_s == pytest.approx(BATCH / own["seconds"], rel=0.02)
    assert found.window_steps_ratio == pytest.approx(1, abs=0.02)
    assert checksum == own["checksum"] is not None
    assert not any(AHEAD in sentence for sentence in footnotes(tmp_path, found))


@pytest.mark.parametrize("known", ["cupy", "unknown"])
@pytest.mark.parametrize("steps", [50, 200, 1000])
def test_steps_in_flight_on_a_gpu_are_waited_for_or_marked(tmp_path: Path, known: str, steps: int) -> None:
    """32 steps in flight, of which the warm-up leaves room for 22."""
    if known == "cupy":
        pytest.importorskip("cupy")
    found, own, _ = measured(tmp_path, sys.executable, BY_HAND, steps, known)
    off = found.samples_per_s * own["seconds"] / BATCH - 1
    marked = any(AHEAD in sentence for sentence in footnotes(tmp_path, found))
    assert abs(off) < 0.02 or (known == "unknown" and marked), off
    assert known == "unknown" or not marked
