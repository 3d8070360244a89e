"""Train a fully connected network with DSSTNE's own programs. Never run by us: they want a GPU, and CUDA 9 or 10.

An epoch of its is the first ten batches of the cell. It starts from weights of its own, and `train` does plain descent alone, whatever the
cell's momentum: losses cannot be compared.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import slipway_reader
from slipway_program.feed import start_reading
from slipway_program.parameters import Layer
from slipway_program.plan import make_plan

STEPS = 10
"""The steps of an epoch; `every` in framework.yaml is the same number."""


def network(layers: List[Layer]) -> Dict[str, Any]:
    """Describe a chain of linear layers. Raises ValueError for others."""
    linear = [layer for layer in layers if layer["kind"] == "linear"]
    if any(layer["kind"] not in ("input", "flatten", "linear", "relu") for layer in layers):
        raise ValueError("this program builds fully connected layers only: model fcn5")
    kind = {"Kind": "Hidden", "Type": "FullyConnected", "Activation": "Relu"}
    hidden = [dict(kind, Name=layer["name"], N=layer["shape_out"][0]) for layer in linear[:-1]]
    output = {"Name": "Output", "Kind": "Output", "Type": "FullyConnected", "DataSet": "labels", "N": "auto", "Activation": "SoftMax"}
    first = {"Name": "Input", "Kind": "Input", "N": "auto", "DataSet": "images", "Sparse": True}
    return {
        "Version": 0.7,
        "Name": "fcn",
        "Kind": "FeedForward",
        "ShuffleIndices": False,
        "Layers": [first, *hidden, dict(output, Sparse=True)],
        "ErrorFunction": "CrossEntropy",
    }


def main() -> None:
    cell = json.loads(Path(os.environ["SLIPWAY_CELL"]).read_text(encoding="utf-8"))
    dataset = slipway_reader.open_dataset(os.environ["SLIPWAY_DATA"])
    steps, plan = make_plan(dict(cell, batch_size=cell["global_batch_size"]), dataset, 0, 1)
    folder = Path(tempfile.mkdtemp(prefix="slipway-dsstne-"))
    (folder / "network.json").write_text(json.dumps(network(cell["model_layers"])))
    batches = start_reading(dataset, plan, threads=1)
    with (folder / "images.txt").open("w") as images_file, (folder / "labels.txt").open("w") as labels_file:
        for step in range(min(STEPS, steps.total)):
            for row, (image, label) in enumerate(zip(*next(batches))):
                name = step * plan.batch_size + row
                values = ":".join("p%d,%.6f" % (place, value / 255) for place, value in enumerate(image.ravel()) if value)
                images_file.write("%d\t%s\n" % (name, values))
                labels_file.write("%d\tc%d,1\n" % (name, label))
    os.chdir(str(folder))
    commands = [
        ["generateNetCDF", "-d", name, "-i", name + ".txt", "-o", name + ".nc", "-f", "features_" + name, "-s", "samples", "-c", *kind]
        for name, kind in (("images", ["-t", "analog"]), ("labels", []))
    ]
    for command in commands:
        code = os.spawnvp(os.P_WAIT, command[0], command)
        if code:
            sys.exit("%s ended with %d" % (" ".join(command), code))
    epochs = -(-steps.total // STEPS)
    constants = cell["optimizer"]
    files = ["-c", "network.json", "-i", "images.nc", "-o", "labels.nc", "-n", "trained.nc"]
    numbers = ["-b", plan.batch_size, "-e", epochs, "-alpha", constants["learning_rate"], "-lambda", constants["weight_decay"]]
    # it prints by printf, and into a pipe that is when a buffer is full
    os.execvp("stdbuf", ["stdbuf", "-oL", "train", *files, *map(str, numbers)])


if __name__ == "__main__":
    main()
