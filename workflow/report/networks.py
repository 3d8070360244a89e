"""Find the networks of a study's cells, each as the cell uses it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
import polars as pl
from pydantic import ValidationError

from base.errors import ConfigError
from base.sanitize import printable
from containers.models import MODELS, Model, build, build_for_tokens, reads_tokens
from containers.models.convolutions import convolutions_of, onednn_name
from containers.models.facts import LayerCost, layer_costs, usual
from data_prep.spec import DatasetSpec
from workflow.report.analysis import Analysis
from workflow.report.profile.profile import Layer, Profile, algorithm_of
from workflow.study.cell import Cell

CHANNELS: Final = {"rgb": 3, "grey": 1}


@dataclass(frozen=True, kw_only=True)
class Use:
    """A network as a study has it, or as others have published it."""

    model: Model
    batch_size: int
    mode: str = "train"
    precision: str = "fp32"
    input_gradient: bool = False
    as_published: bool = False
    """True if its input is that of the publications, since what the study trains on is not known."""

    @property
    def input(self) -> str:
        """Return the shape of one sample, and the number of classes or of token ids."""
        first, last = self.model.layers[0]["shape_out"], self.model.layers[-1]["shape_out"]
        if len(first) == 1:
            return f"{first[0]} tokens of {last[-1]}"
        return f"{'×'.join(map(str, first))}, {last[0]} classes"

    @cached_property
    def costs(self) -> dict[str, LayerCost]:
        """Return by name what each layer costs in a step of one process."""
        return layer_costs(self.model.layers, self.batch_size, mode=self.mode, precision=self.precision, input_gradient=self.input_gradient)

    @property
    def step_flop(self) -> int:
        """Return the FLOP of a step of one process. torch 2.13's FlopCounterMode counts groups + 1 forward passes instead of 2 for the
        backward pass of a convolution in groups (pytorch/pytorch#183405)."""
        return sum(one.forward_flop + one.backward_flop for one in self.costs.values())


def networks(analysis: Analysis) -> dict[tuple[str, str], Use]:
    """Return by source and cell the networks of Slipway's that the study has."""
    macs = dict(
        analysis.frame.filter(pl.col("model_macs").is_not_null() & ~pl.col("own_program")).select("cell_id", "model_macs").iter_rows()
    )
    found: dict[tuple[str, str], Use] = {}
    models: dict[tuple[str, str, int | None], tuple[Model, bool]] = {}
    for one in analysis.cells:
        cell = one.cell
        if cell.program is None and cell.model in MODELS:
            trained_on = cell.model, repr((cell.dataset_spec, cell.crop_size)), macs.get(one.cell_id)
            if trained_on not in models:
                known = _model(cell, trained_on[-1])
                models[trained_on] = known or usual(cell.model), known is None
            model, as_published = models[trained_on]
            keys = {name: getattr(cell, name) for name in ("batch_size", "mode", "precision", "input_gradient")}
            found[one.source, one.cell_id] = Use(model=model, as_published=as_published, **keys)
    return found


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
        return build(cell.model, CHANNELS[spec.channels or "rgb"], cell.size_read(size or (0, 0)), outputs)

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


def with_implementations(profile: Profile, onednn: Mapping[str, Mapping[str, str]], use: Use) -> Profile:
    """Return the profile of a processor with what oneDNN's log tells of the forward pass of its convolutions: kernel and algorithm."""
    taken = {}
    for one in convolutions_of(use.model.layers):
        passes = onednn.get(onednn_name(one, use.batch_size), {})
        if kernel := passes.get("forward_training") or passes.get("forward_inference"):
            taken[one.name] = {"forward_kernel": kernel, "algorithm": algorithm_of(kernel)}
    layers = tuple(msgspec.structs.replace(layer, **taken.get(layer.name, {})) for layer in profile.layers)
    return msgspec.structs.replace(profile, layers=layers)


def layers_in_trace(profile: Profile, model: Model) -> dict[str, Layer]:
    """Return the layers of a trace by their names in this network. A trace of Slipway's has these names; in others the layers whose kernels
    multiply matrices or convolve are taken in order, where there are as many as the network has. Raises ConfigError where there are not."""
    named = {layer.name: layer for layer in profile.layers}
    weighted = [layer["name"] for layer in model.layers if layer["kind"] in ("conv", "linear")]
    if set(weighted) <= set(named):
        return named
    computing = [layer for layer in profile.layers if layer.algorithm is not None]
    if len(computing) != len(weighted):
        missing = next(name for name in weighted if name not in named)
        others = printable(", ".join([*named][:3]))
        raise ConfigError(
            f"--model {model.name}: the trace has no layer {missing}, but {others}, ...; nor can they be taken in "
            f"order, since it has {len(computing)} layers with kernels of convolutions or matrices, and the network {len(weighted)}; "
            "valid: the network that was traced"
        )
    return dict(zip(weighted, computing, strict=True))
