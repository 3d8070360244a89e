"""The call-backs for Hugging Face's Trainer, Lightning and Keras: nothing by hand, the steps of the study in a run, a word where they are
too few."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from base.process import CODE_ROOT
from tests.ports import held_ports
from workflow.run.record.events import RankEvents, read_events
from workflow.run.record.rate import evaluated_s

pytestmark = pytest.mark.slow
LIBRARY = CODE_ROOT / "containers" / "lib"
CELL = {"steps": {"warmup": 2, "measured": 5}, "epochs": None, "batch_size": 8, "device": "cpu", "args": {}}
"""Each library is told to accumulate the gradients of two batches of 4 samples."""
SCRIPT = """
import json, os, sys
import slipway_events
{library}
by_hand = train(9)
for out, steps in (("run", 9), ("short", 6)):
    slipway_events.STARTED.clear()
    os.environ.update(SLIPWAY_OUT=os.path.abspath(out), SLIPWAY_CELL="cell.json")
    try:
        losses = train(steps)
        slipway_events.start().finish()
    except ValueError as error:
        print(json.dumps([by_hand, losses, str(error)]))
"""
HUGGING_FACE = """
import slipway_huggingface, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

def train(steps):
    ids = torch.randint(0, 50, (64, 16), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in ids]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir="out", max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=2, save_strategy="no",
        eval_strategy="steps", eval_steps=3, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:16])
    slipway_huggingface.follow(trainer, tokens=lambda inputs: inputs["input_ids"].numel())
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]
"""
LIGHTNING = """
import lightning, torch
from slipway_lightning import SlipwayCallback
from torch.nn.functional import cross_entropy

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
        self.losses = []

    def training_step(self, batch, index):
        loss = cross_entropy(self.layer(batch[0]), batch[1])
        self.losses.append(float(loss))
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", cross_entropy(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def train(steps):
    data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.arange(24) % 2)
    loader = torch.utils.data.DataLoader(data, 4)
    callback = SlipwayCallback(tokens=lambda batch: batch[0].numel())
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    quiet["devices"] = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = lightning.Trainer(max_epochs=steps // 3, accumulate_grad_batches=2, accelerator="cpu", callbacks=[callback], **quiet)
    net = Net()
    trainer.fit(net, loader, loader)
    return [(a + b) / 2 for a, b in zip(net.losses[::2], net.losses[1::2])]
"""
KERAS = """
import keras, numpy
from slipway_keras import SlipwayCallback

class Losses(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.values = getattr(self, "values", [])
        self.means = [0.0]

    def on_train_batch_end(self, batch, logs=None):
        self.means.append(logs["loss"])
        n = len(self.means) - 1
        self.values.append(n * self.means[-1] - (n - 1) * self.means[-2])

def train(steps):
    x, y = numpy.random.default_rng(0).normal(size=(12, 8)).astype("float32"), numpy.arange(12) % 2
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), loss, metrics=["accuracy"])
    losses = Losses()
    callbacks = [SlipwayCallback(samples=8, tokens=64), losses]
    model.fit(x, y, batch_size=4, epochs=2 * steps // 3, verbose=0, validation_data=(x, y), callbacks=callbacks)
    return [(a + b) / 2 for a, b in zip(losses.values[::2], losses.values[1::2])]
"""


def told(tmp_path: Path, package: str, library: str) -> tuple[list[list[float]], str, RankEvents]:
    """The losses of each step as the library tells them, by hand and in a run; why a short training was refused; the run's events."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: requirements-slow.txt has it")
    (tmp_path / "script.py").write_text(SCRIPT.replace("{library}", library))
    (tmp_path / "cell.json").write_text(json.dumps(CELL))
    for name in ("run", "short"):
        (tmp_path / name).mkdir()
    argv = [sys.executable, "-W", "ignore", "script.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment_of(tmp_path), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    by_hand, in_run, refused = json.loads(done.stdout.splitlines()[-1])
    assert list(tmp_path.glob("events*")) == []
    return [by_hand, in_run], refused, read_events(tmp_path / "run", 1)[0]


def environment_of(home: Path) -> dict[str, str]:
    of_python = {"PYTHONPATH": str(LIBRARY), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(home)}
    return {**of_python, "HF_HUB_OFFLINE": "1", "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("package", "library", "setting"),
    [
        ("transformers", HUGGING_FACE, "max_steps (or num_train_epochs) of TrainingArguments"),
        ("lightning", LIGHTNING, "max_steps (or max_epochs) of the Trainer"),
        ("keras", KERAS, "epochs (or steps_per_epoch) of fit()"),
    ],
)
def test_a_call_back_tells_of_the_steps_of_the_study(tmp_path: Path, package: str, library: str, setting: str) -> None:
    (by_hand, in_run), refused, found = told(tmp_path, package, library)
    assert len(by_hand) == 9
    assert len(in_run) == 7
    assert refused == f"the study asks for 7 steps, and {setting} would end the training after 6: raise it"
    assert found.broken_lines == 0
    assert [step.measured for _, step in sorted(found.steps.items())] == [False] * 2 + [True] * 5
    assert [(step.samples, step.tokens) for step in found.steps.values()] == [(8, TOKENS[package])] * 7
    assert [step.loss for _, step in sorted(found.steps.items())] == pytest.approx(in_run, rel=1e-3)
    assert all(step.input_s is not None and 0 < step.input_s < step.seconds for step in found.steps.values())
    for step in found.steps.values():
        parts = {name: seconds for name in PARTS if (seconds := getattr(step, name)) is not None}
        assert parts.keys() == PARTS_OF[package]
        assert sum(parts.values()) + (step.input_s or 0.0) <= step.seconds, "parts do not overlap"
    assert_complete(found, package)


PARTS = ("copy_s", "forward_s", "backward_s", "exchange_s", "optimizer_s")
PARTS_OF = {"transformers": {*PARTS} - {"exchange_s"}, "lightning": {"forward_s", "backward_s", "optimizer_s"}, "keras": set()}
TWO = """
import os, time
import slipway_events, torch
{library}
forward = torch.nn.Linear.forward

def slow(self, inputs):
    time.sleep(0.1 if os.environ["RANK"] == "1" else 0.0)
    return forward(self, inputs)

torch.nn.Linear.forward = slow
train(21)
"""


@pytest.mark.parametrize(("package", "library"), [("transformers", HUGGING_FACE), ("lightning", LIGHTNING)])
def test_a_call_back_parts_the_exchange_from_the_backward(tmp_path: Path, package: str, library: str) -> None:
    """Rank 1 computes longer, and rank 0 waits for it in the exchange."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: requirements-slow.txt has it")
    (tmp_path / "script.py").write_text(TWO.replace("{library}", library))
    (tmp_path / "cell.json").write_text(json.dumps(CELL))
    own = {
        **environment_of(tmp_path),
        "SLIPWAY_OUT": str(tmp_path),
        "SLIPWAY_CELL": str(tmp_path / "cell.json"),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(*held_ports()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    argv = [sys.executable, "-W", "ignore", "script.py"]
    ranks = [subprocess.Popen(argv, cwd=tmp_path, env={**own, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    fast, slow = (rank.steps for _, rank in sorted(read_events(tmp_path, 2).items()))
    steps = [(fast[number], slow[number]) for number in range(7)]
    assert all(getattr(step, name) is not None for pair in steps for step in pair for name in ("forward_s", "backward_s", "exchange_s"))
    waited, alone = (sum(pair[rank].exchange_s or 0.0 for pair in steps) for rank in (0, 1))
    assert waited > alone


TOKENS = {"transformers": 128, "lightning": 64, "keras": 64}


def assert_complete(found: RankEvents, package: str) -> None:
    """The start, an evaluation and the end, whose window is that of the measured steps."""
    start, stop = found.start, found.stop
    assert start is not None
    assert f"{package}_version" in (start.provenance or {})
    assert found.evals
    evaluation = found.evals[-1]
    assert (evaluation.split, evaluation.samples) == ("validation", EVALUATED[package])
    assert stop is not None
    assert [(one.step, one.epoch) for one in found.evals] == EVALUATED_AT[package]
    assert all(one.eval_s for one in found.evals[:2])
    paused = evaluated_s(found, found)
    assert {step for step, seconds in paused.items() if seconds > 0} == {step for step, _ in EVALUATED_AT[package] if 0 < step < 7}
    assert stop.window_steps_s == pytest.approx(sum(step.seconds for step in found.steps.values() if step.measured))
    assert stop.window_wall_s >= stop.window_steps_s


EVALUATED_AT: dict[str, Any] = {
    "transformers": [(3, 0.375), (6, 0.75)],
    "lightning": [(3, 1), (6, 2), (7, None)],
    "keras": [(1, 1), (3, 2), (4, 3), (6, 4), (7, 5)],
}
EVALUATED = {"transformers": 16, "lightning": 24, "keras": None}
