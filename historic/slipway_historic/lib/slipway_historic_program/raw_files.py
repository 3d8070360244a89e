"""For programs in languages without a reader of ours: batches, labels, starting weights and layers as plain files, then the program.

    python3 -m slipway_historic_program.raw_files COMMAND ...

In SLIPWAY_OUT, hidden and unfinished, so that they are not pushed: `.raw-images.part` float32 [steps, batch, channels, height, width],
normalised; `.raw-labels.part` int32 [steps, batch]; `.raw-weights.part` float32, of each layer its weight (OIHW, or (out, in)) and bias,
one after the other; all little-endian. `.raw-plan.part` is text, a line each: `steps`, `batch` (of all processes together), `input`,
`classes`, `seed`, the constants of the optimizer, and in order `layer KIND NAME NUMBERS...`.
"""

import json
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import numpy as np
import slipway_reader
from slipway_program.driver import first_parameters
from slipway_program.feed import start_reading
from slipway_program.parameters import Cell, Layer
from slipway_program.plan import make_plan

MAX_BYTES = 8 << 30
CHAIN = ("conv", "pool", "linear", "relu", "flatten", "dropout")


def export(cell: Cell, data: Path, out: Path) -> None:
    """Write the files. Raises ValueError for a network that is no chain of CHAIN, and for more than MAX_BYTES of images."""
    dataset = slipway_reader.open_dataset(str(data), cell.get("crop_size"))
    one = dict(cell, batch_size=cell["global_batch_size"])
    steps, plan = make_plan(one, dataset, 0, 1)
    shape = cell["model_layers"][0]["shape_out"]
    lines = list(layer_lines(cell["model_layers"]))
    num_bytes = 4 * steps.total * plan.batch_size * int(np.prod(shape))
    if num_bytes > MAX_BYTES:
        raise ValueError(
            "the batches of %d steps are %d bytes as plain files, and more than %d are not written: "
            "take fewer steps, smaller batches or smaller images" % (steps.total, num_bytes, MAX_BYTES)
        )
    arrays = first_parameters(cell, dataset)
    mean, scale = np.asarray(dataset.mean, np.float32), 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)
    with raw(out, "images").open("wb") as images_file, raw(out, "labels").open("wb") as labels_file:
        for images, labels in islice(start_reading(dataset, plan, threads=1), steps.total):
            normalised = (images.astype(np.float32) - mean) * scale
            images_file.write(np.ascontiguousarray(normalised.transpose(0, 3, 1, 2), "<f4").tobytes())
            labels_file.write(labels.astype("<i4").tobytes())
    with raw(out, "weights").open("wb") as weights_file:
        for layer in cell["model_layers"]:
            for what in ("weight", "bias"):
                if "%s.%s" % (layer["name"], what) in arrays:
                    weights_file.write(np.ascontiguousarray(arrays["%s.%s" % (layer["name"], what)], "<f4").tobytes())
    constants = cell["optimizer"]
    head = [("steps", steps.total), ("batch", plan.batch_size), ("input", *shape), ("classes", dataset.num_classes), ("seed", cell["seed"])]
    head += [(name, repr(float(constants[name]))) for name in ("learning_rate", "momentum", "weight_decay")]
    text = "".join(" ".join(map(str, words)) + "\n" for words in [*head, *lines])
    raw(out, "plan").write_text(text, encoding="ascii")


def raw(out: Path, name: str) -> Path:
    return out / (".raw-%s.part" % name)


def layer_lines(layers: List[Layer]) -> Iterator[Tuple[Any, ...]]:
    """Yield `conv` and `linear` with the number of their outputs and inputs; windows as kernel, stride, padding, each rows then
    columns."""
    shapes = {layer["name"]: layer["shape_out"] for layer in layers}
    for place, layer in enumerate(layers[1:]):
        kind, name, before = layer["kind"], layer["name"], layers[place]
        if kind not in CHAIN or layer["inputs"] != [before["name"]] or layer.get("groups", 1) != 1:
            raise ValueError(
                "layer %r (%s) is no link of a chain of %s: this framework has no such network here" % (name, kind, ", ".join(CHAIN))
            )
        windows = [number for key in ("kernel", "stride", "padding") for number in layer.get(key, ())]
        sizes = [layer["shape_out"][0], shapes[before["name"]][0]] if kind in ("conv", "linear") else []
        mode = {"pool": layer.get("mode"), "dropout": layer.get("ratio")}.get(kind)
        yield ("layer", kind, name, *([] if mode is None else [mode]), *sizes, *windows)


def main(command: List[str]) -> None:
    cell = json.loads(Path(os.environ["SLIPWAY_CELL"]).read_text(encoding="utf-8"))
    export(cell, Path(os.environ["SLIPWAY_DATA"]), Path(os.environ["SLIPWAY_OUT"]))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit("%s cannot be started: %s: the image must have it" % (command[0], error.strerror))


if __name__ == "__main__":
    main(sys.argv[1:])
