"""BigDL: one driver on the head and a Spark worker on each of two nodes, from the supervisor to the record."""

import importlib
from pathlib import Path

import pytest

from containers.frameworks import load_framework
from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec
from tests.containers.frameworks.programs import interpreter
from tests.workflow.run.test_runs import ended
from tests.workflow.run.world import World


@pytest.mark.slow
def test_one_driver_trains_on_two_nodes(world: World) -> None:
    """The losses are PyTorch's, with a batch that holds all samples, since it chooses their order by itself; they are those of both nodes,
    and no Java is left."""
    interpreter("bigdl")
    world.limits |= {"walltime_s": 240.0, "init_s": 200.0}  # four Javas start, which on a busy machine takes a minute
    datasets = world.storage / "datasets"
    spec = parse_spec({"source": "synthetic", "samples": 4, "classes": 4, "size": 28, "channels": "grey", "splits": {}}, datasets)
    world.dataset = datasets / build_dataset(spec, "tiny", datasets, jobs=1).path
    losses = {}
    for name in ("pytorch", "bigdl"):
        run_id = world.cell(2, 1)
        optimizer = {"name": "sgd", "learning_rate": 0.002, "momentum": 0.9, "weight_decay": 0.01}
        world.cells[-1].update({"framework": name, "optimizer": optimizer})
        world.write()
        record = ended(world, run_id)
        assert (record["status"], record["status_reason"]) == ("ok", None)
        cell, found = record["cell"], record["performance"]
        assert found["samples"] == found["num_measured_steps"] * cell["global_batch_size"]
        losses[name] = [loss for _, loss in record["training"]["first_losses"]]
    assert len(losses["bigdl"]) == 5
    assert losses["bigdl"] == pytest.approx(losses["pytorch"], rel=1e-5)
    assert not world.pids("org.apache.spark")


@pytest.mark.parametrize(("loss", "read"), [("1.8896. ", "1.8896"), ("1.2E-4. ", "1.2E-4"), ("NaN. ", "NaN"), ("Infinity. ", "Infinity")])
def test_every_loss_that_bigdl_prints_is_read(lib: Path, monkeypatch: pytest.MonkeyPatch, loss: str, read: str) -> None:
    """As Java writes numbers. One that was passed over would end the steps that are told, and with them the reason of the run's end."""
    for path in (lib, load_framework("bigdl").folder):
        monkeypatch.syspath_prepend(str(path))
    line = f"[Epoch 1 1/9][Iteration 20][Wall Clock 7.2s] Trained 128.0 records in 0.2967 seconds. Throughput is 431.4. Loss is {loss}"
    found = importlib.import_module("slipway_bigdl.lines").LINE.search(line)
    assert (found["step"], found["samples"], found["seconds"], found["loss"]) == ("20", "128.0", "0.2967", read)
