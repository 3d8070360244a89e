"""Make the tables of the networks: what is counted of each, and what its convolutions cost by each way to compute them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import polars as pl
from pydantic import ValidationError

from base.errors import ConfigError
from containers.models import MODELS, Model, build, build_for_tokens, reads_tokens
from containers.models.convolutions import ALGORITHMS, Convolution, convolutions_of, cost
from containers.models.facts import PUBLISHED, count, depth, usual
from containers.models.memory import estimate_memory
from data_prep.spec import DatasetSpec
from workflow.report.analysis import Analysis
from workflow.report.cells import detail_title
from workflow.report.collect import FLOP_PER_MAC, PASSES
from workflow.report.table import NONE, Column, Table, numbers, scaled, words
from workflow.study.cell import Cell

MODEL_FACTS: Final = "model-facts"
CONVOLUTIONS: Final = "convolutions"
USUAL_BATCH: Final = 128
"""The batch of convolutions without a study: that of the published comparisons."""
MEGA, GIGA, MIB = 1e6, 1e9, 2**20
CHANNELS: Final = {"rgb": 3, "grey": 1}
COUNTED: Final = ("conv", "conv_depth", "linear")
ALGORITHM_TITLES: Final = {"direct": "Direct", "gemm": "GEMM", "fft": "FFT", "winograd2": "F(2×2)", "winograd4": "F(4×4)"}


@dataclass(frozen=True, kw_only=True)
class _Use:
    """A network as a study has it, or as others have published it."""

    model: Model
    batch_size: int
    mode: str = "train"
    precision: str = "fp32"
    input_gradient: bool = False
    as_published: bool = False
    """Whether its input is that of the publications, since what the study trains on is not known."""

    @property
    def input(self) -> str:
        """Return the shape of one sample, and of how many classes or ids it is one."""
        first, last = self.model.layers[0]["shape_out"], self.model.layers[-1]["shape_out"]
        if len(first) == 1:
            return f"{first[0]} tokens of {last[-1]}"
        return f"{'×'.join(map(str, first))}, {last[0]} classes"


def _published_uses(names: Iterable[str], batch_size: int) -> list[_Use]:
    return [_Use(model=usual(name), batch_size=batch_size) for name in names]


def _uses(analysis: Analysis) -> list[_Use]:
    """Return the networks of Slipway's that the study has, each with the batches, modes and precisions of its cells."""
    macs = dict(
        analysis.frame.filter(pl.col("model_macs").is_not_null() & ~pl.col("own_program")).select("cell_id", "model_macs").iter_rows()
    )
    found: dict[tuple[object, ...], _Use] = {}
    models: dict[tuple[str, str, int | None], Model | None] = {}
    for one in analysis.cells:
        cell = one.cell
        if cell.program is None and cell.model in MODELS:
            trained_on = cell.model, repr(cell.dataset_spec), macs.get(one.cell_id)
            if trained_on not in models:
                models[trained_on] = _model(cell, trained_on[-1])
            model = models[trained_on]
            use = _Use(
                model=model or usual(cell.model),
                batch_size=cell.batch_size,
                mode=cell.mode,
                precision=cell.precision,
                input_gradient=cell.input_gradient,
                as_published=model is None,
            )
            found.setdefault((cell.model, use.input, use.batch_size, use.mode, use.precision, use.input_gradient), use)
    return list(found.values())


def _model(cell: Cell, macs: int | None) -> Model | None:
    """Build the network for what the cell trains on; None where that is not known. A specification does not say how many classes or ids
    there are: they follow from the multiply-adds of a record, which grow by the same number with each of them."""
    try:
        spec = DatasetSpec.model_validate(dict(cell.dataset_spec))
    except ValidationError:  # of another version
        return None
    size, lengths = spec.known_size, spec.lengths

    def built(outputs: int) -> Model:
        if reads_tokens(cell.model):
            return build_for_tokens(cell.model, outputs, lengths[0])
        return build(cell.model, CHANNELS[spec.channels or "rgb"], size or (0, 0), outputs)

    if (len(lengths) != 1 or not lengths[0]) if reads_tokens(cell.model) else size is None:
        return None
    try:
        one, two = built(1).macs, built(2).macs
    except ConfigError:  # a study of another version, whose networks fitted
        return None
    if spec.classes is not None:
        return built(spec.classes)
    outputs, rest = divmod((macs or 0) - one, two - one)
    return built(outputs + 1) if macs and outputs >= 0 and rest == 0 else None


def facts_of_models(analysis: Analysis) -> Table:
    """Build the table of facts of the study's networks."""
    return _facts(_uses(analysis))


def model_facts(names: Iterable[str]) -> Table:
    """Build the table of facts of these networks, each with the input that it is published for."""
    return _facts(_published_uses(names, 1))


def _facts(uses: Sequence[_Use]) -> Table:
    models = [use.model for use in uses]
    published = [PUBLISHED.get(model.name) for model in models]
    memory = [estimate_memory(use.model.layers, use.batch_size, mode=use.mode, precision=use.precision) for use in uses]
    counts = {
        "conv": [count(model.layers, "conv") for model in models],
        "conv_depth": [depth(model.layers) for model in models],
        "linear": [count(model.layers, "linear") for model in models],
    }
    titles = {"conv": "Convolutions", "conv_depth": "Convolutions in depth", "linear": "Fully connected"}
    millions, giga = partial(scaled, MEGA, digits=4), partial(scaled, GIGA, digits=4)
    columns = [
        words("model", "Model", [model.name for model in models]),
        words("variant", "Variant", [model.variant for model in models], wrap=True),
        words("input", "Input", [use.input + (" (as published)" if use.as_published else "") for use in uses]),
        *_batch_columns(uses),
        *[_counts(key, titles[key], values) for key, values in counts.items()],
        numbers("parameters", "Parameters [M]", millions, [model.parameters for model in models]),
        numbers("macs", "Multiply-adds [M]", millions, [model.macs for model in models]),
        numbers("flop_per_step", "GFLOP per step", giga, [_step_flop(use) for use in uses]),
        numbers("activation_bytes", "Activations [MiB]", partial(scaled, MIB), [one.activation_bytes for one in memory]),
        numbers("memory_bytes", "Memory [MiB]", partial(scaled, MIB), [one.total_bytes for one in memory]),
        *[
            _counts(
                f"published_{key}", f"Published: {titles[key].lower()}", [None if one is None else getattr(one, key) for one in published]
            )
            for key in COUNTED
        ],
        numbers("published_parameters", "Published: parameters [M]", millions, [one and one.parameters for one in published]),
        numbers("published_macs", "Published: multiply-adds [M]", millions, [one and one.macs for one in published]),
        words("source", "Published by", [one and one.source for one in published], wrap=True),
    ]
    return Table(
        name=MODEL_FACTS,
        title="Facts of the networks",
        caption="Counted from the layers that are trained, of one sample or token: convolutions in all, and in depth the most that lie one "
        "behind the other; multiply-adds forward. FLOP per step: 2 for each multiply-add forward and, in training, as many backward for "
        "weights and for inputs, without those of the images unless they are asked for; of the batch of one process. Activations: what "
        "the backward pass keeps of it. Memory: with weights, gradients, momentum and buckets, without workspace. As published: what the "
        "study trains on is not known until a run has ended.",
        columns=tuple(columns),
        empty="No network of Slipway's.",
    )


def _batch_columns(uses: Sequence[_Use]) -> Iterator[Column]:
    yield numbers("batch_size", "Batch", str, [use.batch_size for use in uses])
    for key in ("mode", "precision", "input_gradient"):
        values = [getattr(use, key) for use in uses]
        if len(set(values)) > 1:
            yield words(key, detail_title(key).capitalize(), values)


def _step_flop(use: _Use) -> int:
    """Return the FLOP of a step of one process. torch 2.13's FlopCounterMode counts groups + 1 forward passes instead of 2 for the backward
    pass of a convolution in groups (pytorch/pytorch#183405)."""
    model = use.model
    units = use.batch_size * (model.layers[0]["shape_out"][0] if reads_tokens(model.name) else 1)
    without = 0 if use.input_gradient else model.first_macs
    return units * FLOP_PER_MAC * (model.macs if use.mode == "infer" else PASSES * model.macs - without)


def _counts(key: str, title: str, values: Sequence[int | None]) -> Column:
    return numbers(key, title, lambda value: NONE if value is None else str(value), values)


# Table `convolutions`: multiplications and workspace of each convolution by each algorithm.


def convolutions_of_study(analysis: Analysis) -> Table:
    """Build the table of the convolutions of the study's networks."""
    return _convolutions(_uses(analysis))


def convolutions(names: Iterable[str]) -> Table:
    """Build the table of the convolutions of these networks, each with the input that it is published for and USUAL_BATCH."""
    return _convolutions(_published_uses(names, USUAL_BATCH))


def convolutions_of_model(model: Model, batch_size: int) -> Table:
    """Build the table of the convolutions of one network."""
    return _convolutions([_Use(model=model, batch_size=batch_size)])


def _convolutions(uses: Sequence[_Use]) -> Table:
    first = {(use.model.name, use.input, use.batch_size): use for use in uses}
    rows = [(use, one) for use in first.values() for one in convolutions_of(use.model.layers)]
    costs = [{name: cost(one, use.batch_size, name) for name in ALGORITHMS} for use, one in rows]
    columns = [
        words("model", "Model", [use.model.name for use, _ in rows]),
        words("layer", "Layer", [one.name for _, one in rows]),
        words("shape", "Shape", [_shape(one) for _, one in rows]),
        numbers("batch_size", "Batch", str, [use.batch_size for use, _ in rows]),
        *[
            numbers(
                f"{name}_multiplications",
                f"{title} [G]",
                partial(scaled, GIGA),
                [None if (found := row[name]) is None else found.multiplications for row in costs],
            )
            for name, title in ALGORITHM_TITLES.items()
            if name != "gemm"  # which has those of direct
        ],
        *[
            numbers(
                f"{name}_workspace_bytes",
                f"{title} [MiB]",
                partial(scaled, MIB),
                [None if (found := row[name]) is None else found.workspace_bytes for row in costs],
            )
            for name, title in ALGORITHM_TITLES.items()
            if name != "direct"  # which has none
        ],
    ]
    return Table(
        name=CONVOLUTIONS,
        title="Convolutions by algorithm",
        caption="Multiplications [G] and workspace [MiB, fp32] of the forward pass of a batch, by arithmetic. Direct: implicit GEMM and "
        "GEMM (im2col, here of the whole batch) multiply as often. FFT: tiles of 16 or 32, whichever needs fewer. F(2×2), F(4×4): "
        "Winograd, without its transforms by constants. An empty cell: it cannot compute this one.",
        columns=tuple(columns),
        empty="No network with convolutions.",
    )


def _shape(one: Convolution) -> str:
    text = f"{one.channels_in}→{one.channels_out}, {one.kernel[0]}×{one.kernel[1]} on {one.size_in[0]}×{one.size_in[1]}"
    text += f", stride {one.stride[0]}" if one.stride != (1, 1) else ""
    return text + (f", {one.groups} groups" if one.groups > 1 else "")
