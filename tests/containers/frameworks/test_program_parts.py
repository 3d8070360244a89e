"""What the programs of all frameworks share."""

import errno
import importlib
import json
import math
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from containers.models import build
from containers.models.layers import LayerList
from data_prep.reader.errors import DatasetChanged
from data_prep.reader.sampling import Augmentation, windows
from tests.workflow.run.cells import document
from workflow.run.record.events import requested_steps


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch, lib: Path) -> Any:
    """part("plan") is slipway_program.plan, imported as a program imports it."""
    monkeypatch.syspath_prepend(str(lib))

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"slipway_program.{name}")

    return load


def dataset(**samples: int | tuple[int, ...]) -> Any:
    """So many samples in each split; several numbers: of token sequences of several lengths."""
    groups = {name: number if isinstance(number, tuple) else (number,) for name, number in samples.items()}
    return SimpleNamespace(manifest={"splits": samples}, groups=groups.get)


def cell(**keys: Any) -> dict[str, Any]:
    defaults = {"mode": "train", "seed": 1, "batch_size": 4, "global_batch_size": 4, "epochs": None, "steps": {"warmup": 2, "measured": 3}}
    return {**defaults, **keys}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("[" * 100_000, "no whole safetensors file"),
        ('{"a":' * 100_000, "no whole safetensors file"),
        ({"shape": [2], "data_offsets": [0, 10**30]}, "no whole safetensors file"),
        ({"shape": [2], "data_offsets": [-8, 0]}, "no whole safetensors file"),
        ({"shape": [2], "data_offsets": [8, 0]}, "no whole safetensors file"),
        ({"shape": [2], "data_offsets": [8, 4]}, "no whole safetensors file"),
        ({"shape": [-1], "data_offsets": [0, 8]}, "no whole safetensors file"),
        ({"shape": [2], "data_offsets": [0, 11]}, "no whole safetensors file"),
        ({"shape": [1], "data_offsets": [0, 8], "dtype": "I64"}, "of another network: a is of the type int64"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_damaged_file_of_parameters_is_refused(part: Any, tmp_path: Path, header: str | dict[str, Any], words: str) -> None:
    text = (header if isinstance(header, str) else json.dumps({"a": {"dtype": "F32", **header}})).encode()
    path = tmp_path / "parameters.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(11 if "11" in str(header) else 8))
    with pytest.raises(ValueError, match=words):
        part("parameters").read_parameters(path, {"a": [1] if "I64" in str(header) else [2]})
    if isinstance(header, str):
        with pytest.raises(ValueError, match=words):
            part("parameters").read_metadata(path)


def test_parameters_are_read_as_they_were_written(part: Any, tmp_path: Path) -> None:
    path, arrays = tmp_path / "parameters.safetensors", {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([7, 8])}
    part("parameters").write_parameters(path, arrays, {"model": "lenet", "model_variant": ""})
    found = part("parameters").read_parameters(path, {"a": [2, 3], "b": [2]})
    assert {name: array.tolist() for name, array in found.items()} == {name: array.tolist() for name, array in arrays.items()}


def written(part: Any, out: Path) -> tuple[Path, dict[str, Any]]:
    """A checkpoint before step 3, and its cell."""
    own = cell(model="lenet")
    part("checkpoint").write_checkpoint(out, own, {"net.a": np.arange(40, dtype=np.float32)}, 3, {"scaler": "{}"})
    return out / "checkpoint.safetensors", own


def resume(part: Any, path: Path, wanted: dict[str, Any]) -> tuple[Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPWAY_CHECKPOINT", str(path))
        return part("checkpoint").find_checkpoint(wanted), part("checkpoint").read_checkpoint(path)


def test_a_checkpoint_is_read_as_it_was_written(part: Any, tmp_path: Path) -> None:
    path, own = written(part, tmp_path)
    found, (arrays, metadata) = resume(part, path, own)
    assert (found.path, found.step, metadata["scaler"]) == (path, 3, "{}")
    assert arrays["net.a"].tolist() == list(range(40))
    with pytest.raises(ValueError, match=f"{path} is a checkpoint of another cell, model 'lenet'"):
        resume(part, path, {**own, "seed": 7})
    with pytest.raises(FileNotFoundError):
        resume(part, tmp_path / "none", own)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:], "damaged: its numbers are not those that were written"),
        (lambda content: content[:-100], "no whole safetensors file"),
        (lambda _: b"", "no whole safetensors file"),
        (lambda content: content + b"\0", "no whole safetensors file"),
        (
            lambda content: content.replace(b"checkpoint/1", b"checkpoint/0"),
            "not a checkpoint of this version: found format 'slipway.checkp",
        ),
    ],
    ids=["flipped", "short", "empty", "longer", "old"],
)
def test_a_checkpoint_that_is_not_what_was_written_is_refused(part: Any, tmp_path: Path, change: Any, words: str) -> None:
    path, own = written(part, tmp_path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path} is {words}"):
        resume(part, path, own)


WRITES = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from slipway_program.checkpoint import write_checkpoint

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
write_checkpoint(Path(sys.argv[1]), {"model": "lenet"}, {"net.a": np.zeros(1 << 20, np.float32)}, 4, {})
"""


@pytest.mark.processes
@pytest.mark.parametrize("after_bytes", [0, 1 << 20])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(part: Any, lib: Path, tmp_path: Path, after_bytes: int) -> None:
    """By the kernel, which ends whoever writes more than it may."""
    path, _ = written(part, tmp_path)
    before = path.read_bytes()
    argv = [sys.executable, "-c", WRITES, str(tmp_path), str(after_bytes)]
    assert subprocess.run(argv, env={"PYTHONPATH": str(lib)}, check=False).returncode == -signal.SIGXFSZ
    assert (tmp_path / ".checkpoint.safetensors.part").stat().st_size == after_bytes
    assert path.read_bytes() == before


def test_rank_0_looks_for_a_request_before_each_batch(part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_STOP", str(tmp_path / "stop"))
    first, other = (part("checkpoint").Request(rank) for rank in (0, 1))
    assert [request.is_there() for request in (first, other)] == [False, False]
    batches = first.watch(iter("ab"), 7)
    assert next(batches) == "a"
    (tmp_path / "stop").touch()
    assert [request.is_there() for request in (first, other)] == [True, False]
    with pytest.raises(part("checkpoint").CheckpointRequested, match="a checkpoint is wanted before step 7"):
        next(batches)
    assert list(other.watch(iter("ab"), 7)) == ["a", "b"]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize(
    ("train", "test"),
    [((20,), (1,)), ((20,), (24,)), ((20,), (25,)), ((20, 7, 33), (5, 0, 6))],
    ids=["one sample to evaluate", "whole batches", "a batch of one more", "sequences of three lengths"],
)
def test_every_world_reads_the_same_global_batches_and_evaluates_each_sample_once(
    part: Any, world: int, train: tuple[int, ...], test: tuple[int, ...]
) -> None:
    """Of several lengths, a batch is of one; and what is no whole batch is left out of the training."""
    keys = {"global_batch_size": 8, "batch_size": 8 // world}
    plans = [part("plan").make_plan(cell(**keys), dataset(train=train, test=test), rank, world)[1] for rank in range(world)]
    whole = part("plan").make_plan(cell(batch_size=8, global_batch_size=8), dataset(train=train, test=test), 0, 1)[1]
    batches = [np.concatenate([plan.share(number).indices for plan in plans]).tolist() for number in range(5)]
    assert batches == [whole.share(number).indices.tolist() for number in range(5)]
    assert all(len({(row >= 20) + (row >= 27) for row in batch}) == 1 for batch in batches)
    shares = [plan.share(number) for plan in plans for number in range(5, plan.batches)]
    assert all(share.split == "test" and 1 <= len(share.indices) <= 8 // world for share in shares)
    evaluated = [share.indices.tolist() for share in shares]
    assert sorted(row for rows in evaluated for row in rows) == list(range(sum(test)))
    assert all(max(rows) < test[0] or min(rows) >= test[0] for rows in evaluated)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ((3,), "has 3 samples, fewer than the global batch of 4"),
        ((2, 3, 1), "has 3 samples of one length, fewer than the global batch of 4"),
    ],
)
def test_a_batch_larger_than_the_split_is_refused_before_a_loader_starts(part: Any, train: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        part("plan").make_plan(cell(), dataset(train=train), 0, 1)


def test_the_shapes_of_sequences_that_are_met_before_evaluation(part: Any) -> None:
    """Those of lengths with a whole global batch; images have one shape, and are not told."""
    rows = [(4, 5), (4, 4), (9, 7), (16, 8), (16, 30)]
    shards = [{"name": f"{n}", "bytes": 1, "length": length, "samples": samples} for n, (length, samples) in enumerate(rows)]
    manifest = {"name": "t", "vocabulary": 9, "lengths": [4, 9, 16], "splits": {"train": {"shards": [0, 1, 2, 3]}, "test": {"shards": [4]}}}
    sequences = part("driver").slipway_reader.Sequences("", {**manifest, "shards": shards})
    for world in (1, 2):
        _, plan = part("plan").make_plan(cell(batch_size=8 // world, global_batch_size=8), sequences, 0, world)
        assert part("plan").shapes_of_sequences(sequences, plan) == [(8 // world, 4), (8 // world, 16)]
    assert part("plan").shapes_of_sequences(dataset(train=20), part("plan").make_plan(cell(), dataset(train=20), 0, 1)[1]) == []


def test_which_split_is_evaluated(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluated(splits: Any, **keys: Any) -> Any:
        return part("plan").make_plan(cell(**keys), splits, 0, 1)[1].eval_split

    assert evaluated(dataset(train=8, validation=2, test=2)) == "test"
    assert evaluated(dataset(train=8, validation=2, test=0)) == "validation"
    assert evaluated(dataset(train=8)) is None
    assert evaluated(dataset(train=8, test=2), mode="infer") is None
    monkeypatch.setenv("SLIPWAY_PARAMETERS", "/p")
    assert evaluated(dataset(train=8, test=2), mode="infer") == "test"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, (5, 2, 5)),
        ({"steps": {"warmup": 0, "measured": 3, "total": None}}, (3, 0, 3)),
        ({"steps": {"warmup": 2, "measured": 3, "total": 9}}, (9, 2, 5)),
        ({"steps": None, "epochs": 2}, (50, 10, 50)),
        ({"steps": None, "epochs": 1, "global_batch_size": 20}, (5, 1, 5)),
    ],
)
def test_steps_and_epochs(part: Any, keys: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert part("plan").count_steps(cell(**keys), 103 // cell(**keys)["global_batch_size"]) == (*expected, 0)


@pytest.mark.parametrize(
    ("first", "expected"), [(0, (9, 2, 5, 0)), (1, (9, 3, 6, 1)), (4, (9, 6, 9, 4)), (6, (9, 8, 9, 6)), (9, (9, 9, 9, 9))]
)
def test_the_window_after_a_resume(part: Any, first: int, expected: tuple[int, int, int, int]) -> None:
    """As many steps are left out as at the start, then as many are measured, as far as there are."""
    steps, plan = part("plan").make_plan(cell(steps={"warmup": 2, "measured": 3, "total": 9}), dataset(train=20), 0, 1, first)
    assert steps == expected
    assert (plan.first, plan.steps) == (first, 9)


@pytest.mark.parametrize(
    "keys",
    [{}, {"steps": {"warmup": 0, "measured": 3}}, {"steps": {"warmup": 2, "measured": 3, "total": 9}}, {"steps": None, "epochs": 2}],
    ids=str,
)
def test_the_supervisor_expects_as_many_steps_as_the_program_does(part: Any, keys: dict[str, Any]) -> None:
    steps = part("plan").count_steps(cell(**keys), 103 // 4)
    for first in range(steps.total + 1):
        left = steps.resumed(first)
        assert requested_steps(document(**{"epochs": None, **cell(**keys)}), 103, first) == (
            left.total - first,
            left.end_measured - left.first_measured,
        )


class Splits:
    """A split that tells which samples are read, and how they are changed: one row of numbers for each."""

    def read_many(self, indices: np.ndarray, out: np.ndarray | None = None, augment: Any = None) -> tuple[np.ndarray, np.ndarray]:
        drawn = windows((16, 16), None, indices, augment)
        return np.column_stack([indices, drawn]), indices


def read(part: Any, number: int, rank: int = 0, world: int = 1, **keys: Any) -> np.ndarray:
    """The images of one share."""
    wanted = cell(batch_size=8 // world, global_batch_size=8, **keys)
    _, plan = part("plan").make_plan(wanted, dataset(train=20, test=4), rank, world)
    images: np.ndarray = plan.read({"train": Splits(), "test": Splits()}, number)[0]
    return images


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_world_trains_on_the_same_pixels(part: Any, world: int) -> None:
    for number in range(5):
        shares = [read(part, number, rank, world, augmentation="crop-flip") for rank in range(world)]
        np.testing.assert_array_equal(np.concatenate(shares), read(part, number, augmentation="crop-flip"))


def test_images_are_augmented_anew_in_each_epoch_and_only_where_they_are_trained_on(part: Any) -> None:
    for number in range(6):  # five steps of two an epoch, then the test split
        plain, changed = read(part, number), read(part, number, augmentation="crop-flip")
        assert np.array_equal(plain, changed) == (number == 5)
        np.testing.assert_array_equal(read(part, number, augmentation="none"), plain)
        if number < 5:
            np.testing.assert_array_equal(read(part, number, augmentation="crop-flip", mode="infer"), plain)
            indices = part("plan").make_plan(cell(batch_size=8, global_batch_size=8), dataset(train=20), 0, 1)[1].share(number).indices
            np.testing.assert_array_equal(changed[:, 1:], windows((16, 16), None, indices, Augmentation("crop-flip", 1, number // 2)))


def test_another_augmentation_is_another_training(part: Any) -> None:
    identity = part("checkpoint").identity
    assert identity(cell()) == identity(cell(augmentation="none"))
    assert identity(cell(augmentation="flip")) != identity(cell())


def test_what_is_dropped_is_a_matter_of_seed_rank_and_step(part: Any) -> None:
    trainer = part("trainer")
    seeds = {trainer.dropout_seed(seed, rank, number) for seed in range(5) for rank in range(5) for number in range(40)}
    assert len(seeds) == 1000
    assert trainer.dropout_seed(1, 2, 3) == zlib.crc32(b"1:2:3")
    assert (trainer.drops([{"kind": "relu"}]), trainer.drops([{"kind": "dropout"}])) == (False, True)


@pytest.mark.parametrize(("extent", "expected"), [(112, (0, 1)), (113, (0, 0)), (2, (0, 1))])
def test_where_windows_reach_over_the_end(part: Any, extent: int, expected: tuple[int, int]) -> None:
    net = LayerList(3, (extent, extent))
    net.ceil_pool("up", 3, 2)
    assert part("trainer").padding_of(net.layers[-1], (extent, extent)) == [expected] * 2
    if extent > 2:
        net.continue_from("input")
        net.pool("down", 3, 2, padding=1)
        assert part("trainer").padding_of(net.layers[-1], (extent, extent)) == [(1, 1)] * 2


class OutOfMemoryError(RuntimeError):
    """Called as torch's."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError("no"), ("oom", 41)),
        (OutOfMemoryError("CUDA out of memory"), ("oom", 41)),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), ("oom", 41)),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ("error", 1)),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ("oom", 41)),
        (RuntimeError("loader process 7 has ended with exit code 1"), ("error", 1)),
        (OSError(28, "No space left on device"), ("storage", 44)),
        (OSError(5, "Input/output error"), ("storage", 44)),
        (OSError(30, "Read-only file system", "in-our-own-output"), ("storage", 44)),
        (OSError(30, "Read-only file system", "/elsewhere/x"), ("error", 1)),
        (RuntimeError("OSError: [Errno 30] Read-only file system: '/elsewhere/x'"), ("error", 1)),
        (RuntimeError("OSError: [Errno 5] Input/output error"), ("storage", 44)),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), ("storage", 44)),
        (DatasetChanged("/c/shard-00000.lmdb cannot be opened"), ("storage", 44)),
        (FileNotFoundError(2, "No such file or directory"), ("error", 1)),
        (OSError("[Errno 281] nothing known"), ("error", 1)),
    ],
)
def test_the_kind_of_a_failure(part: Any, error: Exception, expected: tuple[str, int]) -> None:
    assert part("rank").describe_failure(error) == expected


def test_a_loss_or_a_parameter_that_is_not_finite_has_its_own_end(part: Any) -> None:
    loop, not_finite = part("loop"), part("rank").LossNotFinite
    steps = SimpleNamespace(first=0, first_measured=0, end_measured=2, total=2)
    with pytest.raises(not_finite, match="the loss of step 1 is nan") as raised:
        loop.run_steps(
            steps, lambda number, *_: ((0.5, math.nan)[number], ()), iter([(np.zeros(4), np.zeros(4, int))] * 2), around_of(part, [], [])[0]
        )
    assert part("rank").describe_failure(raised.value) == ("nan", 42)
    part("driver").check_finite({"a.weight": np.ones(3)}, 9)
    with pytest.raises(not_finite, match="after step 8 the parameters of the network are not finite"):
        part("driver").check_finite({"a.weight": np.full(3, np.inf)}, 9)


def test_events_are_lines_at_once(part: Any, tmp_path: Path) -> None:
    events = part("rank").EventFile(str(tmp_path), 3)
    events.phase("init")
    (line,) = (tmp_path / "events-3.jsonl").read_text().splitlines()
    assert json.loads(line).keys() == {"event", "time", "monotonic_ns", "phase"}
    with pytest.raises(ValueError, match="JSON compliant"):
        events.emit("step", loss=float("nan"))
    events.file.close()


def network() -> list[dict[str, Any]]:
    return [dict(layer) for layer in build("lenet", 1, (28, 28), 10).layers]


def test_starting_parameters_are_those_of_the_rule(part: Any) -> None:
    arrays = part("parameters").starting_parameters(network(), 3)
    assert {name: array.shape for name, array in arrays.items()} == {
        "conv1.weight": (20, 1, 5, 5),
        "conv1.bias": (20,),
        "conv2.weight": (50, 20, 5, 5),
        "conv2.bias": (50,),
        "fc1.weight": (500, 800),
        "fc1.bias": (500,),
        "fc2.weight": (10, 500),
        "fc2.bias": (10,),
    }
    limit = next(layer["initial_limit"] for layer in network() if layer["name"] == "fc1")
    state = np.random.RandomState(zlib.crc32(b"3:fc1"))
    np.testing.assert_array_equal(arrays["fc1.weight"], ((2 * state.random_sample((500, 800)) - 1) * limit).astype(np.float32))
    assert part("parameters").count_of(arrays) == 431_080


def test_a_layer_of_another_size_is_refused(part: Any) -> None:
    wrong = [{**layer, "parameters": 7} if layer["name"] == "fc1" else layer for layer in network()]
    with pytest.raises(ValueError, match="layer 'fc1' has 400500 parameters here and 7 in the layer list"):
        part("parameters").starting_parameters(wrong, 0)


@pytest.mark.parametrize(
    ("shape", "count", "words"),
    [
        ([1, 28, 28], 5, "lenet has 431080 parameters here and 5 in the cell"),
        ([1, 9, 9], 431_080, r"the layer list goes from \[1, 28, 28\] to \[10\], the dataset asks for \[1, 9, 9\] to \[10\]"),
    ],
)
def test_a_network_that_is_not_the_cell_s_or_not_for_the_dataset_is_refused(part: Any, shape: list[int], count: int, words: str) -> None:
    own = cell(model="lenet", model_layers=network(), model_parameters=count)
    with pytest.raises(ValueError, match=words):
        part("driver").first_parameters(own, SimpleNamespace(shapes=(shape, [10])))


def test_running_statistics_are_no_parameters(part: Any) -> None:
    parameters = part("parameters")
    arrays = {"bn.weight": np.full(3, 2, np.float32), "bn.running_mean": np.ones(3, np.float32), "bn.running_var": np.ones(3, np.float32)}
    assert parameters.count_of(arrays) == 3
    assert parameters.norm_of(arrays) == pytest.approx(12**0.5)


def test_outputs_are_judged_as_cross_entropy(part: Any) -> None:
    outputs = np.array([[2.0, 0.0], [0.0, 1000.0], [3.0, 1.0]], np.float32)
    losses, right = part("evaluation").judge(outputs, np.array([0, 1, 1]))
    np.testing.assert_allclose(losses, [np.log(1 + np.exp(-2)), 0, 2 + np.log(1 + np.exp(-2))])
    assert right == 2


def test_of_sequences_each_token_is_judged_and_padding_is_none(part: Any) -> None:
    evaluation = part("evaluation")
    outputs = np.log(np.array([[[1, 3], [1, 1]], [[2, 6], [9, 1]]], np.float32))
    labels = np.array([[1, 0], [0, -1]])
    losses, right = evaluation.judge(outputs, labels)
    assert losses == pytest.approx(np.array([[-np.log(3 / 4), np.log(2)], [np.log(4), 0]]))
    assert right == 2
    assert evaluation.mean_loss(outputs, labels) == pytest.approx((losses[0].mean() + losses[1, 0]) / 2)


@pytest.mark.processes
def test_batches_come_in_order_each_in_memory_of_its_own(part: Any, datasets: Any) -> None:
    dataset = part("driver").slipway_reader.open_dataset(str(datasets("digits")))
    steps = {"warmup": 1, "measured": 11}
    _, plan = part("plan").make_plan(cell(batch_size=8, global_batch_size=16, steps=steps), dataset, 1, 2, first=4)
    found = list(part("feed").start_reading(dataset, plan, 2))
    shares = [plan.share(number) for number in range(4, plan.batches)]
    assert [len(labels) for _, labels in found] == [len(share.indices) for share in shares]
    for (images, labels), share in zip(found, shares, strict=True):
        again = dataset.split(share.split).read_many(share.indices)
        np.testing.assert_array_equal(images, again[0])
        np.testing.assert_array_equal(labels, again[1])
    assert not any(np.shares_memory(one[0], other[0]) for one, other in zip(found, found[1:], strict=False))


@pytest.mark.processes
@pytest.mark.parametrize(("data", "first"), [("digits", 0), ("text", 3)])
def test_the_first_batch_is_repeated_from_memory_and_what_is_evaluated_is_read(part: Any, datasets: Any, data: str, first: int) -> None:
    dataset = part("driver").slipway_reader.open_dataset(str(datasets(data)))
    _, plan = part("plan").make_plan(cell(batch_size=8, global_batch_size=16), dataset, 1, 2, first=first)
    found = list(part("feed").repeat_first(dataset, plan))
    ours = list(part("feed").start_reading(dataset, plan, 1))
    assert len(found) == len(ours) > plan.steps - first
    trained = plan.steps - first
    assert all(one is found[0] for one in found[:trained])
    for one, other in zip(found[:1] + found[trained:], ours[:1] + ours[trained:], strict=True):
        np.testing.assert_array_equal(one[0], other[0])


@pytest.mark.processes
@pytest.mark.parametrize("first", [0, 3])
def test_native_batches_begin_at_step_1_and_after_a_resume_where_they_were(part: Any, datasets: Any, first: int) -> None:
    """Step 0 is the cell's own, and what is evaluated too."""
    dataset = part("driver").slipway_reader.open_dataset(str(datasets("digits")))
    _, plan = part("plan").make_plan(cell(batch_size=8, global_batch_size=8), dataset, 0, 1, first=first)
    native = iter([(np.full(1, number, np.float32), np.zeros(8)) for number in range(100)])
    left_out: list[None] = []
    found = list(part("feed").follow_native(dataset, plan, native, lambda: left_out.append(None)))
    ours = list(part("feed").start_reading(dataset, plan, 1))
    assert len(found) == len(ours)
    same = [np.array_equal(one[0], other[0]) for one, other in zip(found, ours, strict=True)]
    trained = plan.steps - first
    assert same == [number >= trained or first + number == 0 for number in range(len(ours))]
    assert [int(images[0]) for images, _ in found[first == 0 : trained]] == list(range(max(first - 1, 0), plan.steps - 1))
    assert len(left_out) == max(first - 1, 0)


@pytest.mark.parametrize(
    ("moments", "ends", "expected"),
    [
        (
            [10, 11, 13, 13.5, 17, 25, 26, 29],
            ["begin", "copy", "forward", "exchange", "forward", "backward", "end_backward", ""],
            {"copy": 1, "forward": 2 + 3.5, "exchange": 0.5 + 1, "backward": 8},
        ),
        ([0, 1, 5, 6], ["begin", "forward", "end_backward", "optimizer"], {"forward": 1, "optimizer": 1}),
        ([], ["forward", "end_backward"], {}),
    ],
    ids=["from the moment before; none without a name", "the last own gradient was not met", "an evaluation, which begins none"],
)
def test_the_parts_of_a_step(part: Any, moments: list[float], ends: list[str], expected: dict[str, float]) -> None:
    """By a clock that tells these moments one after the other."""
    laps = part("loop").Laps(iter(moments).__next__)
    for name in ends:
        getattr(laps, name)() if hasattr(laps, name) else laps.end(name)
    assert part("loop").parts_of(laps.take(), lambda begin, end: end - begin) == expected
    assert laps.take() == []


def around_of(part: Any, emitted: list[tuple[str, dict[str, Any]]], phases: list[str]) -> tuple[Any, Any]:
    """What steps run in, and their events, which go to these lists."""
    events = SimpleNamespace(emit=lambda kind, **fields: emitted.append((kind, fields)), phase=phases.append)
    return part("loop").Around(part("loop").HostClock(), lambda: None, events, SimpleNamespace(is_there=lambda: False)), events


def test_the_events_of_steps_have_the_parts_that_are_told(part: Any) -> None:
    emitted: list[tuple[str, dict[str, Any]]] = []
    steps = SimpleNamespace(first=0, first_measured=1, end_measured=2, total=2)
    batches = iter([(np.zeros(4), np.zeros(4, int))] * 2)
    moments = [[], [("", 1.0), ("copy", 1.25), ("", 2.0), ("optimizer", 2.5)]]
    part("loop").run_steps(steps, lambda number, *_: (0.5, moments[number]), batches, around_of(part, emitted, [])[0])
    told = [{name: value for name, value in fields.items() if name in ("copy_s", "forward_s", "optimizer_s")} for _, fields in emitted]
    assert told == [{}, {"copy_s": 0.25, "optimizer_s": 0.5}]


def test_a_trainer_of_another_distribution_that_sets_nothing_up_tells_no_parts(part: Any) -> None:
    class Own(part("trainer").Trainer):  # type: ignore[misc]
        def __init__(self) -> None:
            """As those of the frameworks of the literature, which do not call the base class."""

    assert Own().laps.take() == []


@pytest.mark.parametrize(
    ("first", "rank", "expected"),
    [
        (0, 0, [0, 1, 2, 3, 4, "e", "e", 5, 6, 7, 8, 9, "e", "e", 10, 11, "e", "e"]),
        (5, 0, ["e", "e", 5, 6, 7, 8, 9, "e", "e", 10, 11, "e", "e"]),
        (6, 1, [6, 7, 8, 9, "e", 10, 11, "e"]),
        (12, 0, ["e", "e"]),
    ],
)
def test_batches_come_in_the_order_in_which_they_are_trained_and_evaluated_on(
    part: Any, first: int, rank: int, expected: list[Any]
) -> None:
    """Epochs of 5 steps; 10 samples to evaluate in batches of 4, the second of which rank 1 has."""
    keys = {"batch_size": 4, "global_batch_size": 8, "steps": {"warmup": 0, "measured": 12}, "evaluate_every": 1}
    _, plan = part("plan").make_plan(cell(**keys), dataset(train=40, test=10), rank, 2, first)
    assert [number if number < 12 else "e" for number in plan.share_numbers()] == expected
    assert list(plan.evaluated_before) == [5, 10]
    assert part("plan").make_plan(cell(), dataset(train=40, test=10), 0, 1)[1].share_numbers() == range(8)
    with pytest.raises(ValueError, match="the dataset has no split test or validation that could be evaluated"):
        part("plan").make_plan(cell(**keys), dataset(train=40), 0, 2)


@pytest.mark.parametrize(("warmup", "before", "after"), [(1, ["warmup", "train"], ["train"]), (2, ["warmup"], ["warmup", "train"])])
def test_a_program_evaluates_between_steps_and_leaves_that_out_of_its_times(
    part: Any, monkeypatch: pytest.MonkeyPatch, warmup: int, before: list[str], after: list[str]
) -> None:
    """Epochs of 2 steps of 1 s; 6 samples to evaluate in two batches of 10 s each, of which a network that always says 0 has 3 right."""
    loop, evaluation, now, phases, emitted = part("loop"), part("evaluation"), [0.0], [], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def passes(seconds: float, found: Any) -> Any:
        now[0] += seconds
        return found

    keys = {"steps": {"warmup": warmup, "measured": 2, "total": 4}, "evaluate_every": 1}
    steps, plan = part("plan").make_plan(cell(**keys), dataset(train=8, test=6), 0, 1)
    indices = (plan.share(number).indices for number in plan.share_numbers())
    batches = ((np.zeros((len(one), 1)), one % 2) for one in indices)
    trainer = SimpleNamespace(outputs=lambda images: passes(10.0, np.zeros((len(images), 2))), total=lambda sums: sums)
    around, events = around_of(part, emitted, phases)
    evaluations = loop.Evaluations(plan.evaluated_before, lambda step: evaluation.evaluate(trainer, batches, plan, step, events))
    times = loop.run_steps(steps, lambda *_: passes(1.0, (0.5, ())), batches, around, evaluations)
    assert times == {"train_s": 4.0, "window_wall_s": 2.0, "window_steps_s": 2.0}
    assert evaluation.evaluate(trainer, batches, plan, 4, events) == 20.0
    assert [fields["seconds"] for kind, fields in emitted if kind == "step"] == [1.0] * 4
    found = [
        [fields[name] for name in ("split", "step", "epoch", "samples", "accuracy", "eval_s")] for kind, fields in emitted if kind == "eval"
    ]
    assert found == [["test", 2, 1.0, 6, 0.5, 20.0], ["test", 4, 2.0, 6, 0.5, 20.0]]
    assert [fields["loss"] for kind, fields in emitted if kind == "eval"] == pytest.approx([math.log(2)] * 2)
    assert phases == [*before, "eval", "eval", "eval", *after, "eval", "eval", "eval"]
    assert list(batches) == []
