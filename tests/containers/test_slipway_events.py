"""slipway_events.py: by hand the plain loop, in a run a line for each step, in Python 3.6 and later."""

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from base.process import CODE_ROOT
from tests.containers.specs import library
from workflow.run.record.events import RankEvents, read_events
from workflow.run.record.rate import performance, training

pytestmark = pytest.mark.processes
HELPER = CODE_ROOT / "containers" / "lib" / "slipway_events.py"
MODULE: Any = library("slipway_events")
LOOP = """
import slipway_events
run = slipway_events.start({facts})
for batch in run.steps([[1, 2], [3, 4], [5]], samples=len):
    run.loss({loss})
print("batches", run.step)
"""
STARTED = "import slipway_events\nrun = slipway_events.start()\n"
EPOCHS = """
import slipway_events
run = slipway_events.start()
for epoch in run.epochs(2):
    for batch in run.steps([1, 2, 3]):
        print(epoch, batch)
"""


def start(tmp_path: Path, text: str, cell: dict[str, Any] | None = None, **env: str) -> tuple[int, str]:
    """Exit code and output of a script with these lines; `cell`: in a run of it."""
    (tmp_path / "script.py").write_text(text)
    if cell is not None:
        (tmp_path / "cell.json").write_text(json.dumps(cell))
        env |= {"SLIPWAY_OUT": str(tmp_path), "SLIPWAY_CELL": str(tmp_path / "cell.json")}
    env |= {"PYTHONPATH": str(HELPER.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], env=env, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def events(tmp_path: Path) -> RankEvents:
    return read_events(tmp_path, 1)[0]


def phases(tmp_path: Path) -> list[str]:
    lines = map(json.loads, (tmp_path / "events-0.jsonl").read_text().splitlines())
    return [line["phase"] for line in lines if line["event"] == "phase"]


CELL = {"steps": {"warmup": 2, "measured": 5}, "epochs": None, "batch_size": 2, "device": "cpu", "args": {"width": 8}}


def test_by_hand_the_loop_is_the_plain_loop(tmp_path: Path) -> None:
    text = LOOP.format(facts="", loss="1.0").replace("run.step)", "list(run.steps('ab')), run.args, run.checkpoint_wanted)")
    assert start(tmp_path, text) == (0, "batches ['a', 'b'] {} False\n")
    assert list(tmp_path.glob("events*")) == []
    assert start(tmp_path, EPOCHS) == (0, "0 1\n0 2\n0 3\n1 1\n1 2\n1 3\n")


def test_in_a_run_each_step_is_a_line(tmp_path: Path) -> None:
    code, said = start(tmp_path, LOOP.format(facts="framework='mine', parameters=7", loss="1 / (run.step + 1)"), CELL)
    assert (code, said) == (0, "batches 7\n")
    found = events(tmp_path)
    assert found.broken_lines == 0
    assert sorted(found.steps) == list(range(7))
    assert [step.measured for step in found.steps.values()] == [False] * 2 + [True] * 5
    assert [step.samples for step in found.steps.values()] == [2, 2, 1, 2, 2, 1, 2]
    assert found.steps[1].loss == 0.5
    assert found.start is not None
    assert (found.start.framework, found.start.parameters, found.start.world_size) == ("mine", 7, 1)
    assert found.stop is not None
    measured_s = sum(step.seconds for step in found.steps.values() if step.measured)
    assert found.stop.window_steps_s == pytest.approx(measured_s)
    assert found.stop.window_wall_s >= measured_s


@pytest.mark.parametrize("told", [-2, 0, math.nan, math.inf, 1.5, "two", 10**400], ids=lambda told: repr(told)[:4])
def test_what_is_no_number_of_samples_is_an_error(told: Any) -> None:
    with pytest.raises(ValueError, match="samples of a batch must be a whole number from 1 on, or None where nobody knows: found"):
        MODULE.whole_count("samples", told, 1)


@pytest.mark.parametrize("name", ["samples", "tokens"])
def test_such_a_number_ends_the_run_and_names_what_it_counts(tmp_path: Path, name: str) -> None:
    code, said = start(tmp_path, LOOP.format(facts="", loss="0.5").replace("samples=len", f"{name}=lambda batch: len(batch) - 3"), CELL)
    assert code == 1
    assert f"ValueError: {name} of a batch must be a whole number from {int(name == 'samples')} on" in said
    assert events(tmp_path).errors[0].kind == "error"


class Tensor:
    def __float__(self) -> float:
        return 2.0


@pytest.mark.parametrize(
    ("told", "least", "count"),
    [(2.0, 1, 2), (None, 1, None), (Tensor(), 1, 2), (0, 0, 0)],
    ids=["a float", "nobody knows", "a tensor", "no tokens"],
)
def test_a_number_of_samples_may_be_of_any_kind_or_not_known(told: Any, least: int, count: int | None) -> None:
    assert MODULE.whole_count("samples", told, least) == count


def array(*shape: int | None) -> SimpleNamespace:
    return SimpleNamespace(shape=shape)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (array(4, 3, 8, 8), 4),
        ((array(4, 8), array(4)), 4),
        ({"x": array(4, 8), "more": [array(4), array()], "names": ["a", "b"]}, 4),
        ((array(4, 8), array(8, 8)), None),
        ([array(3, 8, 8)] * 32, None),
        (array(0, 8), None),
        (array(None, 8), None),
        (SimpleNamespace(shape=None), None),
        (7, None),
        ("words", None),
        ([1, 2, 3], None),
    ],
    ids=repr,
)
def test_the_rows_of_a_batch_are_counted_where_all_its_arrays_have_as_many(batch: Any, count: int | None) -> None:
    assert MODULE.rows(batch) == count


def test_a_step_with_one_batch_that_nobody_can_count_has_no_count(tmp_path: Path) -> None:
    text = LIBRARY.replace("SHORT", "20").replace("batch_done(batch, 2,", "batch_done(batch, 2 if batch else None,")
    assert start(tmp_path, text, CELL)[0] == 0
    assert {step.samples for step in events(tmp_path).steps.values()} == {None}


def test_tokens_stand_beside_the_rows_of_a_batch(tmp_path: Path) -> None:
    text = LOOP.format(facts="", loss="0.5").replace("samples=len", "tokens=lambda batch: 10 * batch.shape[1]")
    text = text.replace("[[1, 2], [3, 4], [5]]", "[__import__('types').SimpleNamespace(shape=(4, columns)) for columns in (2, 1)]")
    assert start(tmp_path, text, CELL) == (0, "batches 7\n")
    assert [(step.samples, step.tokens) for step in events(tmp_path).steps.values()] == [(4, 20), (4, 10)] * 3 + [(4, 20)]


def test_a_batch_is_counted_before_the_loop_takes_it_to_pieces(tmp_path: Path) -> None:
    text = """
import slipway_events
run = slipway_events.start()
for batch in run.steps(({"labels": [0] * size} for size in (2, 2, 1, 2, 2, 1, 2)), samples=lambda batch: len(batch["labels"])):
    run.loss(float(len(batch.pop("labels"))))
"""
    assert start(tmp_path, text, CELL) == (0, "")
    assert [step.samples for step in events(tmp_path).steps.values()] == [2, 2, 1, 2, 2, 1, 2]


def test_the_flop_and_precision_of_the_program_are_told_and_the_memory_at_the_end_of_the_window(tmp_path: Path) -> None:
    facts = "flop_per_unit=6e9, precision='bf16'"
    assert start(tmp_path, LOOP.format(facts=facts, loss="0.5"), CELL)[0] == 0
    found = events(tmp_path)
    assert found.start is not None
    assert (found.start.flop_per_unit, found.start.precision) == (6e9, "bf16")
    assert found.stop is not None
    assert found.stop.max_memory_allocated_bytes > 1 << 20


def test_of_a_gpu_that_another_framework_uses_no_memory_is_told(tmp_path: Path) -> None:
    """Not that of the host: a table would show it as the GPU's."""
    assert start(tmp_path, LOOP.format(facts="", loss="0.5"), {**CELL, "device": "cuda"})[0] == 0
    found = events(tmp_path)
    assert found.stop is not None
    assert "max_memory_allocated_bytes" not in found.stop


def test_epochs_go_on_until_the_steps_are_done(tmp_path: Path) -> None:
    code, said = start(tmp_path, EPOCHS, CELL)
    assert (code, said.split()) == (0, ["0", "1", "0", "2", "0", "3", "1", "1", "1", "2", "1", "3", "2", "1"])
    assert len(events(tmp_path).steps) == 7


@pytest.mark.parametrize("loss", ["1 / (5 - run.step)", "__import__('sys').exit() if run.step == 5 else 1.0"], ids=["error", "exit"])
def test_a_loss_that_was_not_written_yet_comes_before_what_it_led_to(tmp_path: Path, loss: str) -> None:
    start(tmp_path, LOOP.format(facts="", loss=f"float('nan') if run.step == 4 else {loss}"), CELL)
    found = events(tmp_path)
    assert sorted(found.steps) == [0, 1, 2, 3]
    assert [(error.kind, error.message) for error in found.errors] == [("nan", "LossNotFinite: the loss of step 4 is nan")]


def test_a_second_start_is_the_same_run(tmp_path: Path) -> None:
    text = LOOP.format(facts="", loss="0.5").replace("run.loss", "slipway_events.start().loss").replace("samples=len", "samples=2")
    assert start(tmp_path, text, CELL)[0] == 0
    assert len(events(tmp_path).steps) == 7


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ("for _ in run.steps([4, 5, 6]): pass", "run.steps was begun twice in one epoch"),
        ("for _ in run.steps([4, 5, 6]): run.loss(1.0)", "run.steps was begun twice in one epoch"),
        ("for _ in run.steps(TRAINING): run.loss(1.0)", "run.steps was begun twice in one epoch"),
        ("for _ in [4, 5, 6]: pass", None),
        ("pass", None),
    ],
)
def test_a_validation_that_goes_through_run_steps_is_warned_of(tmp_path: Path, validation: str, words: str | None) -> None:
    text = f"""{STARTED}
TRAINING = [1, 2]
for epoch in run.epochs(9):
    for batch in run.steps(TRAINING):
        pass
    {validation}
"""
    assert start(tmp_path, text, CELL) == (0, "")
    assert [warning.partition(":")[0] for warning in events(tmp_path).warnings] == ([words] if words else [])


@pytest.mark.parametrize(("mode", "warned"), [("train", True), ("infer", False)])
def test_steps_without_gradients_are_no_training(tmp_path: Path, mode: str, warned: bool) -> None:
    torch = "import sys, types; sys.modules['torch'] = types.SimpleNamespace(is_grad_enabled=lambda: False, cuda=None, distributed=None)\n"
    text = f"{torch}{STARTED}run.begin = lambda: None\nrun.check_training()\nrun.check_training()\n"
    assert start(tmp_path, text, {**CELL, "mode": mode}) == (0, "")
    assert len(events(tmp_path).warnings) == warned


def test_after_a_resume_the_warm_up_comes_again(tmp_path: Path) -> None:
    assert (
        start(
            tmp_path,
            f"{STARTED}run.resume(4)\nfor _ in run.steps('ab'): pass\n",
            {**CELL, "steps": {"warmup": 1, "measured": 3, "total": 9}},
        )[0]
        == 0
    )
    assert {number: step.measured for number, step in events(tmp_path).steps.items()} == {
        4: False, 5: True, 6: True, 7: True, 8: False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ("float('nan')", "nan"),
        ("[][1]", "error"),
        ("(_ for _ in ()).throw(MemoryError('all of it'))", "oom"),
        ("__import__('data_prep.reader').reader.open_dataset('/nowhere')", "storage"),
    ],
)
def test_what_ends_it_is_an_event(tmp_path: Path, loss: str, kind: str) -> None:
    code, said = start(tmp_path, LOOP.format(facts="", loss=loss), CELL)
    assert code == 1
    assert "Traceback" in said
    found = events(tmp_path)
    assert [error.kind for error in found.errors] == [kind]
    assert found.stop is None


def test_a_script_that_stops_early_tells_of_its_steps_and_of_no_end(tmp_path: Path) -> None:
    text = LOOP.format(facts="", loss="0.5").replace("print(", "    if run.step == 3:\n        break\nprint(")
    assert start(tmp_path, text, CELL)[0] == 0
    assert sorted(events(tmp_path).steps) == [0, 1, 2]
    assert events(tmp_path).stop is None


LIBRARY = """
import slipway_events
run = slipway_events.start()
run.begin()
run.needs(SHORT, "max_steps")
for step in range(20):
    for batch in ({"x": [slipway_events.start]}, None):
        run.has_batch()
        run.batch_done(batch, 2, lambda _: 10, loss=0.25 * step)
        run.wants_batch()
    run.step_done()
    if step == 3:
        run.evaluating()
        run.evaluating()
        run.evaluation("test", 0.5)
        run.back()
    if run.all_done():
        break
print(run.total_steps, step + 1, slipway_events.rows([{"n": 3}]))
"""


def test_a_library_with_a_loop_of_its_own_tells_its_steps(tmp_path: Path) -> None:
    text = LIBRARY.replace("SHORT", "6.5 + 0.5")
    assert start(tmp_path, text) == (0, "None 20 None\n")
    assert start(tmp_path, text, CELL) == (0, "7 7 None\n")
    found = events(tmp_path)
    assert [(step.samples, step.tokens, step.measured) for step in found.steps.values()] == [(4, 20, n > 1) for n in range(7)]
    assert [step.loss for step in found.steps.values()] == [0.5 * n for n in range(7)]
    assert all(step.input_s is not None for step in found.steps.values())
    assert phases(tmp_path) == ["init", "warmup", "train", "eval", "train", "eval"]


def test_an_evaluation_in_percent_is_a_warning_and_a_loss_that_is_nan_ends_the_run(tmp_path: Path) -> None:
    assert start(tmp_path, LIBRARY.replace("SHORT", "20").replace('"test", 0.5', '"test", 0.5, 4, 90.0'), CELL)[0] == 0
    lines = (tmp_path / "events-0.jsonl").read_text().splitlines()
    assert any("an accuracy from 0 to 1, and leaves out 90.0" in line for line in lines if '"warning"' in line)
    assert not any("accuracy" in line for line in lines if '"eval"' in line)
    text = LIBRARY.replace("SHORT", "20").replace('"test", 0.5', '"test", float("nan")')
    assert start(tmp_path, text)[0] == 0, "nothing happens by hand"
    assert start(tmp_path, text, CELL)[0] == 1
    (told,) = [line for line in (tmp_path / "events-0.jsonl").read_text().splitlines() if '"error"' in line]
    assert '"kind": "nan"' in told
    assert "the loss of the evaluation on 'test' is nan" in told


def test_a_wait_that_nobody_tells_of_is_not_told(tmp_path: Path) -> None:
    assert start(tmp_path, LIBRARY.replace("SHORT", "20").replace("run.has_batch()", "pass"), CELL)[0] == 0
    assert {step.input_s for step in events(tmp_path).steps.values()} == {None}


CLOCK = """
import time
now = [100.0]
time.monotonic = lambda: now[0]
import slipway_events
run = slipway_events.start()
def passes(seconds):
    now[0] += seconds
def evaluates():
    BODY
for epoch in run.epochs(2):
    for batch in run.steps([[1, 2], [3, 4], [5, 6]]):
        passes(1.0)
        if run.step in IN_STEPS:
            evaluates()
    if not IN_STEPS:
        evaluates()
"""
SAID = "run.evaluating(); passes(10.0); run.evaluation('test', 0.5, 4, 0.75); passes(0.25)"


@pytest.mark.parametrize(
    ("body", "in_steps", "window_s", "evaluation_s"),
    [
        (SAID, (), 5.5, 20.0),
        (SAID, (4,), 5.25, 10.0),
        (SAID, (0, 4), 5.25, 10.0),
        (SAID.replace("run.evaluating(); ", ""), (), 25.5, 0.0),
        ("run.evaluating(); passes(10.0); run.back()", (), 25.0, 0.0),
        ("passes(10.0)", (4,), 15.0, 0.0),
    ],
)
def test_what_is_said_to_be_an_evaluation_is_in_no_rate(
    tmp_path: Path, body: str, in_steps: tuple[int, ...], window_s: float, evaluation_s: float
) -> None:
    assert start(tmp_path, CLOCK.replace("BODY", body).replace("IN_STEPS", str(in_steps)), CELL)[0] == 0
    found = performance(events_of := read_events(tmp_path, 1, most=7), 1, 2)
    assert found is not None
    assert (found.window_s, found.evaluation_s) == pytest.approx((window_s, evaluation_s))
    assert found.samples_per_s == pytest.approx(10 / window_s)
    told = training(events_of, 1)
    assert told is not None
    if "evaluation(" in body:
        assert [found.step for found in told.evaluations or ()] == (list(in_steps) or [3, 6, 7])
    if evaluation_s:
        one, stop = [one for one in told.evaluations or () if one.step][0], events_of[0].stop
        assert (one.split, one.loss, one.accuracy, one.seconds) == ("test", 0.5, 0.75, 10.0)
        assert (one.step, one.epoch) == ((4, 2) if in_steps else (3, 1))
        assert one.training_s == (4.0 + 0.25 * (len(in_steps) - 1) if in_steps else 3.0)
        assert stop is not None
        assert stop.window_wall_s == window_s
        assert told.train_s == 7.0 + 0.25 * (len(in_steps) or 2)


PARTED = """
import time
import slipway_events

run = slipway_events.start()
with run.part("copy"):
    pass
for batch in run.steps([[1, 2]], samples=len):
    for piece in batch:
        with run.part("forward"):
            begun = time.monotonic()
            while time.monotonic() < begun + 0.004:
                pass
    if run.step != 3:
        with run.part("optimizer"):
            pass
with run.part("forward"):
    pass
print(len(run.parts))
try:
    with run.part("loss"):
        pass
except ValueError as error:
    print(error)
"""


def test_a_program_tells_parts_of_its_steps(tmp_path: Path) -> None:
    words = "0\npart 'loss' is not known; valid: copy, forward, backward, exchange, optimizer\n"
    assert start(tmp_path, PARTED) == (0, words)
    assert start(tmp_path, PARTED, CELL) == (0, words)
    steps = events(tmp_path).steps.values()
    assert all(0.008 <= (step.forward_s or 0) <= step.seconds for step in steps), "both pieces"
    assert [step.optimizer_s is None for step in steps] == [False] * 3 + [True] + [False] * 3
    assert {(step.copy_s, step.backward_s, step.exchange_s) for step in steps} == {(None, None, None)}


def test_a_checkpoint_is_wanted_of_rank_0_alone(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    text = "import slipway_events\nprint(slipway_events.start().checkpoint_wanted)\n"
    for rank, wanted in (("0", "True"), ("1", "False")):
        assert start(tmp_path, text, CELL, SLIPWAY_STOP=str(tmp_path / "stop"), RANK=rank)[1] == f"{wanted}\n"


SAVED = """
import time
now = [100.0]
time.monotonic = lambda: now[0]
import slipway_events
run = slipway_events.start()
for batch in run.steps([[1, 2]] * 7):
    run.loss(1.0)
    if run.step == 3:
        for name in ("best.pt", "checkpoint.safetensors"):
            open(name, "w").close()
            run.checkpoint(name, run.step + 1, resumable=name != "best.pt")
        now[0] += 10.0
    print(batch)
"""


def test_two_checkpoints_of_a_step_are_one_step_and_what_follows_them_is_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert start(tmp_path, SAVED, CELL) == (0, "[1, 2]\n" * 7)
    found = events(tmp_path)
    assert [(checkpoint.step, checkpoint.resumable) for checkpoint in found.checkpoints] == [(4, False), (4, True)]
    assert {step.input_s for step in found.steps.values()} == {0.0}


@pytest.mark.parametrize(("name", "code"), [("checkpoint.safetensors", 0), ("last.pt", 1)])
def test_a_checkpoint_from_which_no_run_resumes_is_refused(tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / name).touch()
    done = start(tmp_path, STARTED + f"run.checkpoint({str(tmp_path / name)!r}, 1)\n", CELL)
    assert done[0] == code
    assert (
        f"a run resumes from $SLIPWAY_OUT/checkpoint.safetensors alone, whatever its format; this is {tmp_path / name}" in done[1]
    ) == code
    assert start(tmp_path, STARTED + f"run.checkpoint({str(tmp_path / name)!r}, 1, resumable=False)\n", CELL)[0] == 0


CHECKSUMS = """
import copy, json, types
import slipway_events, torch
from slipway_events import checksum_of

network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
run = slipway_events.start()
slipway_events.start(model=network)
for batch in run.steps([[1, 2]], samples=len):
    with torch.no_grad():
        network[1].weight += run.step
named = {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}
half = copy.deepcopy(network).to(torch.bfloat16)
found = {
    "half": checksum_of(half),
    "function": checksum_of(lambda: network),
    "arrays": checksum_of(lambda: list(named.values())),
    "names": checksum_of(lambda: named),
    "variables": checksum_of(types.SimpleNamespace(trainable_variables=[parameter.detach() for parameter in network.parameters()])),
    "parts": checksum_of(type("FullyShardedDataParallel", (torch.nn.Sequential,), {})(network)),
    "parts of parameters": checksum_of(lambda: [setattr(one, "ds_id", 1) or one for one in network.parameters()]),
}
halves = [parameter.detach().view(torch.int16).numpy() for parameter in half.parameters()]
orders = halves, named.values(), dict(sorted(named.items())).values()
print(json.dumps([found, *("".join(array.tobytes().hex() for array in one) for one in orders)]))
"""


def test_the_checksum_is_of_the_parameters_after_the_last_step(tmp_path: Path) -> None:
    """Of a network, and of arrays and variables with the same numbers; only the order of names need not be that of the network."""
    code, said = start(tmp_path, CHECKSUMS, CELL)
    assert code == 0, said
    found, *numbers = json.loads(said)
    half, whole, by_name = (hashlib.sha256(bytes.fromhex(text)).hexdigest() for text in numbers)
    assert whole != by_name
    kinds = {"half": half, "names": by_name, **dict.fromkeys(("function", "arrays", "variables"), whole)}
    assert found == {**kinds, **dict.fromkeys(("parts", "parts of parameters"))}
    told = events(tmp_path)
    assert told.stop is not None
    assert (told.stop.checksum, told.warnings) == (whole, [])
    assert phases(tmp_path) == ["init", "warmup", "train", "checksum", "eval"]


def test_what_cannot_be_read_at_the_end_is_a_warning_and_the_run_ends_well(tmp_path: Path) -> None:
    assert start(tmp_path, LOOP.format(facts="model=lambda missing: None", loss="0.5"), CELL) == (0, "batches 7\n")
    told = events(tmp_path)
    assert told.stop is not None
    (warning,) = told.warnings
    assert warning.startswith("the parameters of the model cannot be read for a checksum: TypeError: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{STARTED}for _ in run.steps('ab'):\n    for _ in run.steps('c'): pass\n", "run.steps was called in another run.steps loop"),
        (f"{STARTED}for _ in run.epochs(3): pass\n", "an epoch went by without a step: go through the loader by run.steps(loader)"),
        (f"{STARTED}for _ in run.steps([]): pass\n", "the loader gave no batch after 0 of 7 steps: used up, or a batch too large?"),
        (LIBRARY.replace("SHORT", "6"), "the study asks for 7 steps, and max_steps would end the training after 6: raise it"),
        (
            f"{STARTED}slipway_events.start(model={{}})\n",
            "TypeError: model must be a network of PyTorch, Keras or TensorFlow, or a function that returns the trained arrays, found dict",
        ),
    ],
    ids=["nested", "no steps", "no batch", "too short", "no model"],
)
def test_a_program_that_cannot_go_on_says_what_to_do(tmp_path: Path, text: str, words: str) -> None:
    code, said = start(tmp_path, text, CELL)
    assert code == 1
    assert words in said
    assert events(tmp_path).steps == {}


def test_a_loop_that_was_left_may_be_followed_by_another(tmp_path: Path) -> None:
    assert start(tmp_path, f"{STARTED}next(run.steps('ab'))\nlist(run.steps('ab'))\n", CELL)[0] == 0
