"""Put the measured time of each convolution of a trace beside what it costs by arithmetic, for `slipway profile --trace FILE --model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from base.errors import ConfigError
from containers.models import Model
from containers.models.convolutions import convolutions_of, cost
from containers.models.facts import usual
from workflow.report.model_tables import convolutions_of_model
from workflow.report.profile.profile import Layer, Profile, short_kernel
from workflow.report.table import Table, numbers, significant, words

MILLI: Final = 1e-3
GIGA: Final = 1e9


def measured_convolutions(profile: Profile, name: str, batch_size: int, image: tuple[int, int, int] | None = None) -> Table:
    """Build the table `convolutions` of the network `name`, with the layers of the trace beside its rows. `image`: channels, height and
    width, None as it is published. Raises ConfigError: unknown network, one without convolutions, or another one than that of the trace."""
    model = usual(name, image)
    layers = _layers_of(profile, model)
    table = convolutions_of_model(model, batch_size)
    rows = [(layers[one.name], cost(one, batch_size, "direct")) for one in convolutions_of(model.layers)]
    rates = [direct.multiplications / (MILLI * layer.forward_ms) if direct and layer.forward_ms > 0 else None for layer, direct in rows]
    beside = (
        words("measured_layer", "Layer of the trace", [layer.name for layer, _ in rows]),
        numbers("forward_s", "Forward [ms]", lambda value: significant(value / MILLI), [MILLI * layer.forward_ms for layer, _ in rows]),
        numbers("backward_s", "Backward [ms]", lambda value: significant(value / MILLI), [MILLI * layer.backward_ms for layer, _ in rows]),
        words("algorithm", "Algorithm", [layer.algorithm for layer, _ in rows]),
        numbers("direct_per_s", "Direct [G/s]", lambda value: significant(None if value is None else value / GIGA), rates),
        words("kernel", "Longest kernel", [short_kernel(layer.forward_kernel or "") for layer, _ in rows]),
    )
    caption = (
        f"{table.caption} Beside it the layers of the trace ({profile.device}), a mean step: forward and backward, the algorithm that the "
        f"names of its kernels tell, and the multiplications of the direct way over its forward time. Batch {batch_size} and the size of "
        "the images are what was given."
    )
    return replace(table, columns=(*table.columns, *beside), caption=caption)


def _layers_of(profile: Profile, model: Model) -> Mapping[str, Layer]:
    """Return the layers of the trace by the names that the network has for its convolutions. A trace of Slipway's has these names; in
    others the layers whose kernels multiply matrices or convolve are taken in order, where there are as many as the network has."""
    named = {layer.name: layer for layer in profile.layers}
    weighted = [layer["name"] for layer in model.layers if layer["kind"] in ("conv", "linear")]
    ours = [one.name for one in convolutions_of(model.layers)]
    if not ours:
        raise ConfigError(f"--model {model.name}: this network has no convolutions")
    if set(ours) <= set(named):
        return named
    computing = [layer for layer in profile.layers if layer.algorithm is not None]
    if len(computing) != len(weighted):
        raise ConfigError(
            f"--model {model.name}: it has {len(weighted)} convolutions and fully connected layers, and the trace has kernels of "
            f"{len(computing)}, by other names; valid: the network that was traced"
        )
    return dict(zip(weighted, computing, strict=True))
