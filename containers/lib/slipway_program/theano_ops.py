"""What the frameworks that are built on Theano compute by other operations than its own, so that gradients are those of PyTorch."""

from typing import Any, Mapping, Sequence

import numpy as np
from theano import tensor as T


def relu(x: Any) -> Any:
    """With a gradient of 0 at 0, where Theano's own has 0.5."""
    return T.switch(x > 0, x, np.float32(0))


def max_pool(layer: Mapping[str, Any], x: Any) -> Any:
    """Of a layer of the list. The gradient goes to the first one that is largest; Theano's own gives the whole of it to each of them, which
    are many where an image has an even colour."""
    places = np.ndindex(*layer["kernel"])
    x = _padded(x, *layer["padding"])
    found = _at(layer, x, next(places))
    for place in places:
        part = _at(layer, x, place)
        found = T.switch(part > found, part, found)
    return found


def _padded(x: Any, rows: int, columns: int) -> Any:
    """With what is less than all."""
    if not rows and not columns:
        return x
    shape = x.shape[0], x.shape[1], x.shape[2] + 2 * rows, x.shape[3] + 2 * columns
    around = T.alloc(np.float32(-np.inf), *shape)
    return T.set_subtensor(around[:, :, rows : rows + x.shape[2], columns : columns + x.shape[3]], x)


def _at(layer: Mapping[str, Any], x: Any, place: Sequence[int]) -> Any:
    """What lies at one place of each window."""
    sizes = zip(place, layer["stride"], layer["shape_out"][1:])
    rows, columns = (slice(first, first + stride * (count - 1) + 1, stride) for first, stride, count in sizes)
    return x[:, :, rows, columns]
