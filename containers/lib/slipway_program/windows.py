"""Where the windows of a pooling layer lie, for frameworks that want to be told it in numbers."""

from typing import Any, List, Mapping, Sequence, Tuple


def padding_of(layer: Mapping[str, Any], size: Sequence[int]) -> List[Tuple[int, int]]:
    """(before, after) of height and width, for images of `size`: more after them where the last window reaches over the end (`ceil`)."""
    padding, stride, kernel = layer["padding"], layer["stride"], layer["kernel"]
    reached = [(layer["shape_out"][1 + axis] - 1) * stride[axis] + kernel[axis] - padding[axis] for axis in (0, 1)]
    return [(padding[axis], max(padding[axis], reached[axis] - size[axis])) for axis in (0, 1)]
