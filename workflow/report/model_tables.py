"""Make the tables of the networks: what is counted of each, and what its convolutions cost by each way to compute them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from base.sanitize import printable
from containers.models.convolutions import ALGORITHMS, Convolution, convolutions_of, cost
from containers.models.facts import PUBLISHED, count, depth, usual
from containers.models.memory import estimate_memory
from workflow.report.analysis import Analysis
from workflow.report.cells import detail_title, series_words
from workflow.report.layers_table import Use, layers_in_trace, networks, profiles
from workflow.report.meanings import describe_columns
from workflow.report.profile.profile import Layer, Profile, short_kernel
from workflow.report.shared_columns import SEPARATOR, sentence
from workflow.report.table_type import GIGA, MEGA, MIB, MILLI, NONE, Column, Table, numbers, scaled, whole, words

MODEL_FACTS: Final = "model-facts"
CONVOLUTIONS: Final = "convolutions"
USUAL_BATCH: Final = 128
"""The batch of convolutions without a study: that of the published comparisons."""
MEASURED_CAPTION: Final = (
    " Measured: a mean step of a trace, in which operators of a CPU take longer; the algorithm that the library took, if names show "
    "it; the multiplications of the direct way over the forward time."
)
ALGORITHM_TITLES: Final = {"direct": "Direct", "gemm": "GEMM", "fft": "FFT", "winograd2": "F(2×2)", "winograd4": "F(4×4)"}


def facts_of_models(analysis: Analysis) -> Table:
    """Build the table of facts of the study's networks, each with the batches, modes and precisions of its cells."""
    found: dict[tuple[object, ...], Use] = {}
    for use in networks(analysis).values():
        found.setdefault((use.model.name, use.input, use.batch_size, use.mode, use.precision, use.input_gradient), use)
    return _facts(list(found.values()))


def model_facts(names: Iterable[str]) -> Table:
    """Build the table of facts of these networks, each with the input that it is published for."""
    return _facts([Use(model=usual(name), batch_size=1) for name in names])


def _facts(uses: Sequence[Use]) -> Table:
    models = [use.model for use in uses]
    memory = [estimate_memory(use.model.layers, use.batch_size, mode=use.mode, precision=use.precision) for use in uses]
    millions, giga = partial(scaled, MEGA, digits=4), partial(scaled, GIGA, digits=4)
    counted: dict[str, tuple[str, Callable[[Any], str], Sequence[int]]] = {
        "conv": ("Convolutions", whole, [count(model.layers, "conv") for model in models]),
        "conv_depth": ("Convolutions in depth", whole, [depth(model.layers) for model in models]),
        "linear": ("Fully connected", whole, [count(model.layers, "linear") for model in models]),
        "parameters": ("Parameters [M]", millions, [model.parameters for model in models]),
        "macs": ("Multiply-adds [M]", millions, [model.macs for model in models]),
    }
    published = [PUBLISHED.get(model.name) for model in models]
    columns = [
        words("model", "Model", [model.name for model in models], folds=True),
        words("variant", "Variant", [model.variant for model in models], wrap=True, folds=True),
        words("input", "Input", [use.input + (" (as published)" if use.as_published else "") for use in uses], folds=True),
        *_batch_columns(uses),
        *[numbers(key, title, show, values) for key, (title, show, values) in counted.items()],
        numbers("flop_per_step", "GFLOP per step", giga, [use.step_flop for use in uses]),
        numbers("activation_bytes", "Activations [MiB]", partial(scaled, MIB), [one.activation_bytes for one in memory]),
        numbers("memory_bytes", "Memory [MiB]", partial(scaled, MIB), [one.total_bytes for one in memory]),
        *[
            numbers(f"published_{key}", f"Published: {title[0].lower()}{title[1:]}", show, [getattr(one, key, None) for one in published])
            for key, (title, show, _) in counted.items()
        ],
        words("source", "Published by", [one and one.source for one in published], wrap=True),
    ]
    return Table(
        name=MODEL_FACTS,
        title="Facts of the networks",
        caption=sentence(
            "Counted from the layers that are trained",
            *describe_columns(MODEL_FACTS, columns, ("conv_depth", "macs", "flop_per_step", "activation_bytes", "memory_bytes")),
            "As published: what the study trains on is not known until a run has ended",
        ),
        columns=tuple(columns),
        empty="No network of Slipway's.",
    )


def _batch_columns(uses: Sequence[Use]) -> Iterator[Column]:
    yield numbers("batch_size", "Batch", str, [use.batch_size for use in uses], folds=True)
    for key in ("mode", "precision", "input_gradient"):
        values = [getattr(use, key) for use in uses]
        if len(set(values)) > 1:
            yield words(key, detail_title(key).capitalize(), values, folds=True)


# Table `convolutions`: multiplications and workspace of each convolution by each algorithm, and what was measured of it.


class Measured(Struct, frozen=True, kw_only=True):
    """A network, and what a profile measured of its layers."""

    use: Use
    layers: Mapping[str, Layer] = {}
    """The layers of the profile by their names in the network."""
    cell: str = ""


def convolutions_of_study(analysis: Analysis) -> Table:
    """Build the table of the convolutions of the study's networks, beside what profile runs measured of them: of cells that differ in nodes
    and processes alone those with the fewest."""
    counted: dict[tuple[object, ...], Measured] = {}
    for use in networks(analysis).values():
        counted.setdefault((use.model.name, use.input, use.batch_size), Measured(use=use))
    measured: dict[tuple[object, ...], dict[str, Measured]] = {key: {} for key in counted}
    for cell, traced, found in sorted(profiles(analysis), key=lambda one: one[0].num_processes):
        if traced is not None and not isinstance(found, str):
            texts = series_words(cell, analysis.key_names[1:])
            series = printable(SEPARATOR.join([*texts, *([cell.source] if len(analysis.sources) > 1 else [])]))
            size = f"{cell.cell.nodes}\N{MULTIPLICATION SIGN}{cell.cell.gpus_per_node}"
            one = Measured(
                use=traced, layers={layer.name: layer for layer in found.layers}, cell=SEPARATOR.join(filter(None, (series, size)))
            )
            measured[traced.model.name, traced.input, traced.batch_size].setdefault(series, one)
    return _convolutions([one for key, alone in counted.items() for one in list(measured[key].values()) or [alone]])


def convolutions(names: Iterable[str]) -> Table:
    """Build the table of the convolutions of these networks, each with the input that it is published for and USUAL_BATCH."""
    return _convolutions([Measured(use=Use(model=usual(name), batch_size=USUAL_BATCH)) for name in names])


def convolutions_of_trace(profile: Profile, use: Use) -> Table:
    """Build the table of the convolutions of a network that was traced. Raises ConfigError where it was another one."""
    return _convolutions([Measured(use=use, layers=layers_in_trace(profile, use.model))])


def _convolutions(found: Sequence[Measured]) -> Table:
    rows = [(one, convolution) for one in found for convolution in convolutions_of(one.use.model.layers)]
    costs = [{name: cost(convolution, one.use.batch_size, name) for name in ALGORITHMS} for one, convolution in rows]
    columns = [
        words("model", "Model", [one.use.model.name for one, _ in rows]),
        words("layer", "Layer", [convolution.name for _, convolution in rows]),
        words("shape", "Shape", [_shape(convolution) for _, convolution in rows]),
        numbers("batch_size", "Batch", str, [one.use.batch_size for one, _ in rows]),
        *[
            numbers(
                f"{name}_multiplications",
                f"{title} [G]",
                partial(scaled, GIGA),
                [getattr(row[name], "multiplications", None) for row in costs],
            )
            for name, title in ALGORITHM_TITLES.items()
            if name != "gemm"  # which has those of direct
        ],
        *[
            numbers(
                f"{name}_workspace_bytes",
                f"{title} [MiB]",
                partial(scaled, MIB),
                [getattr(row[name], "workspace_bytes", None) for row in costs],
            )
            for name, title in ALGORITHM_TITLES.items()
            if name != "direct"  # which has none
        ],
    ]
    layers = [one.layers.get(convolution.name) for one, convolution in rows]
    if any(layers):
        columns += _measured(rows, layers)
    return Table(
        name=CONVOLUTIONS,
        title="Convolutions by algorithm",
        caption="Multiplications [G] and workspace [MiB, fp32] of the forward pass of a batch, by arithmetic. Direct: implicit GEMM and "
        "GEMM (im2col, here of the whole batch) multiply as often. FFT: tiles of 16 or 32, whichever needs fewer. F(2×2), F(4×4): "
        f"Winograd, without its transforms by constants. {NONE}: it cannot compute this one." + (MEASURED_CAPTION if any(layers) else ""),
        columns=tuple(columns),
        empty="No network with convolutions.",
    )


def _measured(rows: Sequence[tuple[Measured, Convolution]], layers: Sequence[Layer | None]) -> Iterator[Column]:
    if any(one.cell for one, _ in rows):
        yield words("cell", "Profile of", [one.cell for one, _ in rows])
    if any(layer is not None and layer.name != convolution.name for layer, (_, convolution) in zip(layers, rows, strict=True)):
        yield words("measured_layer", "Layer of the trace", [layer and layer.name for layer in layers])
    yield numbers("forward_s", "Forward [ms]", partial(scaled, MILLI), [layer and MILLI * layer.forward_ms for layer in layers])
    yield numbers("backward_s", "Backward [ms]", partial(scaled, MILLI), [layer and MILLI * layer.backward_ms for layer in layers])
    yield words("algorithm", "Algorithm", [layer and layer.algorithm for layer in layers])
    direct = [cost(convolution, one.use.batch_size, "direct") for one, convolution in rows]
    rates = [
        count.multiplications / (MILLI * layer.forward_ms) if count and layer and layer.forward_ms else None
        for count, layer in zip(direct, layers, strict=True)
    ]
    yield numbers("direct_per_s", "Direct [G/s]", partial(scaled, GIGA), rates)
    yield words("kernel", "Longest kernel", [layer and short_kernel(layer.forward_kernel or "") for layer in layers])


def _shape(one: Convolution) -> str:
    text = f"{one.channels_in}→{one.channels_out}, {one.kernel[0]}×{one.kernel[1]} on {one.size_in[0]}×{one.size_in[1]}"
    text += f", stride {one.stride[0]}" if one.stride != (1, 1) else ""
    return text + (f", {one.groups} groups" if one.groups > 1 else "")
