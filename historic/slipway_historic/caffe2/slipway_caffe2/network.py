"""A network from a layer list, as operators of Caffe2. Blobs have the names of layers and parameters, and the canonical layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from caffe2.proto import caffe2_pb2
from caffe2.python import core
from slipway_program.parameters import Layer

MKL = core.DeviceOption(caffe2_pb2.IDEEP)
TO_MKL, FROM_MKL = "CopyCPUToIDEEP", "CopyIDEEPToCPU"

MASK = ".mask"
"""The suffix, after the name of a dropout layer, of the blob that its input is multiplied by in training. No seed begins the numbers of
Caffe2's own operator anew."""


def add_layers(net: Any, layers: Sequence[Layer], training: bool) -> str:
    """Add forward operators, and return the blob of the last layer. That of the first one is fed, and in training MASK of each dropout
    layer.
    """
    extents = {layer["name"]: layer["shape_out"][1:] for layer in layers}
    for layer in layers[1:]:
        inputs = [str(name) for name in layer["inputs"]]
        if layer["kind"] == "bn":
            _bn(net, layer, inputs, training)
        elif layer["kind"] == "dropout":
            net.Mul([*inputs, layer["name"] + MASK], layer["name"]) if training else net.Copy(inputs, layer["name"])
        elif layer["kind"] == "pool":
            _pool(net, layer, inputs, extents[inputs[0]])
        else:
            _KINDS[layer["kind"]](net, layer, inputs)
    return str(layers[-1]["name"])


def _bn(net: Any, layer: Layer, inputs: Sequence[str], training: bool) -> None:
    """Normalise in training by the batch, and move the running statistics as PyTorch does."""
    name = layer["name"]
    own = [f"{name}.{what}" for what in ("weight", "bias", "running_mean", "running_var")]
    outputs = [name, *own[2:], name + ".mean", name + ".variance"] if training else [name]
    net.SpatialBN(
        [*inputs, *own], outputs, is_test=int(not training), epsilon=layer["epsilon"], momentum=1 - layer["momentum"], order="NCHW"
    )


def _conv(net: Any, layer: Layer, inputs: Sequence[str]) -> None:
    own = [f"{layer['name']}.{what}" for what in (("weight", "bias") if layer["bias"] else ("weight",))]
    net.Conv([*inputs, *own], layer["name"], **_windows(layer), group=layer["groups"])


def _pool(net: Any, layer: Layer, inputs: Sequence[str], extents: Sequence[int]) -> None:
    if layer["mode"] != "max":
        net.AveragePool(inputs, layer["name"], **_windows(layer), count_include_pad=1)
        return
    windows = _windows(layer)
    if layer.get("ceil"):  # so much more at the end as the last window reaches over it
        sizes = zip(layer["shape_out"][1:], layer["stride"], layer["kernel"], extents)
        windows["pads"] = [0, 0, *(max(0, (count - 1) * stride + kernel - extent) for count, stride, kernel, extent in sizes)]
    # By MKL-DNN: Caffe2's own gives the gradient of a window to all of its maxima where several are equal, not to one.
    there, back = (f"{layer['name']}.{what}.mkl" for what in ("in", "out"))
    net.Proto().op.extend([_copy(TO_MKL, inputs[0], there)])
    net.MaxPool(there, back, **windows, training_mode=1, device_option=MKL)
    net.Proto().op.extend([_copy(FROM_MKL, back, layer["name"])])


def _copy(kind: str, source: str, target: str) -> Any:
    """Return a copying operator: they are there, but no methods of a net."""
    return core.CreateOperator(kind, [source], [target], device_option=MKL)


def _copied_back(operator: Any, gradients: Sequence[str]) -> Any:
    """Return the gradient of a copy: the other copy. One that comes back to Caffe2 may be added to others, whose operators must be on the
    same device.
    """
    target = operator.input[0] + "_grad"
    if operator.type == FROM_MKL:
        return [_copy(TO_MKL, gradients[0], target)], [target]
    back = operator.output[0] + ".back"
    return [_copy(FROM_MKL, gradients[0], back), core.CreateOperator("Alias", [back], [target])], [target]


def _windows(layer: Layer) -> dict[str, list[int] | str]:
    return {"kernels": list(layer["kernel"]), "strides": list(layer["stride"]), "pads": [*layer["padding"]] * 2, "order": "NCHW"}


def _linear(net: Any, layer: Layer, inputs: Sequence[str]) -> None:
    net.FC([*inputs, f"{layer['name']}.weight", f"{layer['name']}.bias"], layer["name"])


def _lrn(net: Any, layer: Layer, inputs: Sequence[str]) -> None:
    outputs = [layer["name"], layer["name"] + ".scale"]
    net.LRN(inputs, outputs, size=layer["size"], alpha=layer["alpha"], beta=layer["beta"], bias=layer["k"], order="NCHW")


_KINDS: dict[str, Callable[[Any, Layer, Sequence[str]], Any]] = {
    "conv": _conv,
    "linear": _linear,
    "lrn": _lrn,
    "flatten": lambda net, layer, inputs: net.Flatten(inputs, layer["name"]),
    "global_pool": lambda net, layer, inputs: net.AveragePool(inputs, layer["name"], global_pooling=1, order="NCHW"),
    "relu": lambda net, layer, inputs: net.Relu(inputs, layer["name"]),
    "concat": lambda net, layer, inputs: net.Concat(inputs, [layer["name"], layer["name"] + ".parts"], axis=1),
    "add": lambda net, layer, inputs: net.Sum(inputs, layer["name"]),
}


for _kind in (TO_MKL, FROM_MKL):
    core.GradientRegistry.RegisterGradient(_kind)(_copied_back)
