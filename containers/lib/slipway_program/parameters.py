"""Read and write the parameters of a network, by name and in canonical layout: those it starts from, and the file they end in.

A name is `<layer>.<what>`: `weight` (OIHW, or (out, in)) and `bias` of `conv` and `linear`; `weight`, `bias`, `running_mean` and
`running_var` of `bn`, of which the last two are no parameters; `weight` (one row per token, or place) of `embedding` and `positions`;
`weight` and `bias` of `layer_norm`; `weight_ih`, `weight_hh` and `bias` of `lstm`.
"""

import hashlib
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import numpy as np

Cell = Mapping[str, Any]
"""cell.json, as docs/developers/framework-contract.md has it."""
Layer = Mapping[str, Any]
"""A layer of its `model_layers`."""
Optimizer = Mapping[str, Any]
"""Its `optimizer`."""
Facts = Dict[str, Union[str, int, float, List[int], Dict[str, str], None]]
"""What a program reports of itself and its network."""
Arrays = Dict[str, np.ndarray]
T = TypeVar("T")

ALIGNMENT = 8
MAX_HEADER_BYTES = 100 << 20
TYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}
_NUMPY = {word: np.dtype(name) for name, word in TYPES.items()}


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> int:
    """Write all of `arrays`, C-contiguous, and make it durable; the bytes written."""
    header: Dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.data)
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text) + end


def read_tensors(path: Path) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """Read (the tensors by name, the metadata) of a file. Raises ValueError for a file that is not whole, OSError."""
    content = bytearray(path.read_bytes())
    try:
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(bytes(content[8 : 8 + length]))
        metadata = header.pop("__metadata__", {})
        arrays = {name: _array(content, 8 + length, entry) for name, entry in header.items()}
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is no whole safetensors file: {error}") from error
    if len(content) != 8 + length + end:
        raise ValueError(f"{path} is no whole safetensors file: {len(content)} bytes, of {8 + length + end} that its header promises")
    return arrays, metadata


def read_metadata(path: Path) -> Dict[str, str]:
    """Read the metadata alone. Raises ValueError for a file that is not whole, OSError."""
    with path.open("rb") as file:
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            metadata: Dict[str, str] = json.loads(file.read(min(length, MAX_HEADER_BYTES)))["__metadata__"]
        except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is no whole safetensors file: {error}") from error
    return metadata


def _array(content: bytearray, base: int, entry: Mapping[str, Any]) -> np.ndarray:
    dtype = _NUMPY[entry["dtype"]]
    first, end = entry["data_offsets"]
    array: np.ndarray = np.frombuffer(content, dtype, (end - first) // dtype.itemsize, base + first).reshape(entry["shape"])
    if first < 0 or array.nbytes != end - first or list(array.shape) != entry["shape"]:
        raise ValueError("a tensor of the shape %s has the offsets %d and %d" % (entry["shape"], first, end))
    return array


FILE_NAME = "parameters.safetensors"
ROWS = 64
RUNNING = (".running_mean", ".running_var")


def starting_rows(layer: Layer, shape: Sequence[int], seed: int, what: str = "weight") -> Iterator[np.ndarray]:
    """Return the starting weights of one layer, or those of its weights that are called `what`, float64, some rows after the other: as
    containers/models/layers.py says. RandomState, since numpy keeps its stream for ever. In parts, or the numbers as float64 would be the
    peak of the run's memory."""
    name = layer["name"] if what == "weight" else "%s.%s" % (layer["name"], what)
    state = np.random.RandomState(zlib.crc32(("%d:%s" % (seed, name)).encode()))
    for first in range(0, shape[0], ROWS):
        rows = (min(ROWS, shape[0] - first), *shape[1:])
        yield (2 * state.random_sample(rows) - 1) * layer["initial_limit"]


def starting_parameters(layers: Sequence[Layer], seed: int) -> Arrays:
    """Return the parameters that all layers start with, float32. Raises ValueError if their number differs from the layer list's, or
    a layer's kind is unknown.
    """
    shapes = {layer["name"]: layer["shape_out"] for layer in layers}
    found = {}  # type: Arrays
    for layer in layers:
        own = _starting(layer, shapes[layer["inputs"][0]] if layer["inputs"] else [0], seed)
        count = sum(array.size for name, array in own.items() if not name.startswith("running_"))
        if count != layer["parameters"]:
            raise ValueError("layer %r has %d parameters here and %d in the layer list" % (layer["name"], count, layer["parameters"]))
        found.update({"%s.%s" % (layer["name"], name): array for name, array in own.items()})
    return found


def _starting(layer: Layer, shape_in: Sequence[int], seed: int) -> Arrays:
    kind, features = layer["kind"], layer["shape_out"][0 if layer["kind"] in ("conv", "bn") else -1]
    if kind in ("bn", "layer_norm"):
        zeros, ones = np.zeros(features, np.float32), np.ones(features, np.float32)
        plain = {"weight": ones, "bias": zeros}
        return plain if kind == "layer_norm" else dict(plain, running_mean=zeros.copy(), running_var=ones.copy())
    if kind == "lstm":
        shapes = {"weight_ih": (4 * features, shape_in[-1]), "weight_hh": (4 * features, features)}
        weights = {what: _weights(layer, shape, seed, what) for what, shape in shapes.items()}
        return dict(weights, bias=np.zeros(4 * features, np.float32))
    if kind in ("embedding", "positions"):
        return {"weight": _weights(layer, (layer["vocabulary" if kind == "embedding" else "most"], features), seed)}
    if kind not in ("conv", "linear"):
        return {}
    channels = shape_in[0] // layer["groups"] if kind == "conv" else shape_in[-1]
    weight = _weights(layer, (features, channels, *layer.get("kernel", ())), seed)
    return {"weight": weight, "bias": np.zeros(features, np.float32)} if layer["bias"] else {"weight": weight}


def _weights(layer: Layer, shape: Tuple[int, ...], seed: int, what: str = "weight") -> np.ndarray:
    weight = np.empty(shape, np.float32)
    for number, rows in enumerate(starting_rows(layer, shape, seed, what)):
        weight[number * ROWS : number * ROWS + len(rows)] = rows
    return weight


def trained(arrays: Mapping[str, T]) -> Dict[str, T]:
    """Return the arrays that are parameters, not running statistics."""
    return {name: array for name, array in arrays.items() if not name.endswith(RUNNING)}


def count_of(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(int(array.size) for array in trained(arrays).values())


def norm_of(arrays: Mapping[str, np.ndarray]) -> float:
    """Return the Euclidean norm of all parameters as one vector."""
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in trained(arrays).values())))


def checksum_of(tensors: Mapping[str, T], as_array: Callable[[T], np.ndarray] = np.asarray) -> str:
    """Return the SHA-256 of all parameters as a file of them has them: in the order of their names, each as little-endian float32. They are
    taken one after the other, so that what `as_array` makes of the second may take the room of the first.
    """
    digest = hashlib.sha256()
    for _, tensor in sorted(trained(tensors).items()):
        digest.update(np.ascontiguousarray(as_array(tensor), "<f4").reshape(-1).data)
    return digest.hexdigest()


def write_parameters(path: Path, arrays: Mapping[str, np.ndarray], cell: Cell) -> int:
    """Write all as float32 and make it durable; the bytes written."""
    plain = {name: np.ascontiguousarray(array, np.float32) for name, array in sorted(arrays.items())}
    return write_tensors(path, plain, {"model": cell["model"], "variant": cell["model_variant"]})


def given_parameters() -> Optional[Path]:
    """Return the file of parameters that the run starts from; None where it starts from the seed, or from a checkpoint."""
    path = os.environ.get("SLIPWAY_PARAMETERS")
    return None if path is None else Path(path)


def read_parameters(path: Path, shapes: Mapping[str, Sequence[int]]) -> Arrays:
    """Return the numbers of a file. Raises ValueError, which names the first one, when names or shapes differ from these."""
    arrays, _ = read_tensors(path)
    for name in sorted(set(arrays) | set(shapes)):
        there = list(arrays[name].shape) if name in arrays else "missing"
        here = list(shapes[name]) if name in shapes else "missing"
        if there != here:
            raise ValueError(
                "the file of parameters is of another network: %s is %s in the file, and %s in the model" % (name, there, here)
            )
        if arrays[name].dtype.kind != "f":
            raise ValueError("the file of parameters is of another network: %s is of the type %s" % (name, arrays[name].dtype))
    return arrays
