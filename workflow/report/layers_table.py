"""Find the networks of a study, and make the table of layers: where the time of a step goes, by its profile runs, or by one trace."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import msgspec
import polars as pl
from msgspec import Struct
from pydantic import ValidationError

from base.errors import ConfigError
from base.sanitize import printable
from containers.models import MODELS, Model, build, build_for_tokens, reads_tokens
from containers.models.convolutions import convolutions_of, onednn_name
from containers.models.facts import LayerCost, layer_costs, usual
from data_prep.spec import DatasetSpec
from workflow.report.analysis import Analysis
from workflow.report.cells import CellResult
from workflow.report.profile.profile import Layer, Profile, algorithm_of, short_kernel
from workflow.report.profile.runs import profiles_in
from workflow.report.shared_columns import key_columns, linked, sentence, size_columns
from workflow.report.table_type import GIGA, MEGA, MILLI, Column, Reason, Table, numbers, percent, significant, words
from workflow.study.cell import Cell

# The networks of a study's cells, each as the cell uses it.


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


# The table, and the parts of the plot.


TITLES: Final = {"functional": "between layers", "unattributed": "unknown"}
"""Row of the profile -> its title, where that is another word."""
PASSES: Final = {"forward": "Forward", "backward": "Backward", "backward_data": "of data", "backward_weights": "of weights"}
CAPTION: Final = (
    "Milliseconds of a mean traced step. Of data, of weights: parts of the backward, if the names of its kernels show them. At the same "
    "time: work beside other work, which counts once. Not computing: the rest of the step; it is negative if the traced work takes longer "
    "than the step"
)
ON_CPU: Final = "On a CPU one operator computes the gradients of both data and weights. Operators take longer while they are traced"
COUNTED: Final = (
    "GFLOP/s: 2 FLOP for each multiply-add of the layer, over its time; an FFT and Winograd need fewer, so they can be above the peak. "
    "Moves: what it reads and writes by arithmetic, once for each pass"
)
STACKED: Final = ("Input", "Forward", "Backward", "Communication", "Optimizer", "Loss", "Other", "Not computing")
"""The parts of the picture."""


class Row(Struct, frozen=True, kw_only=True):
    """A row of one step: a layer, or what else a step has, whose time is that of `forward`."""

    name: str
    spent_ms: Mapping[str, float | None] = {}
    """Pass -> milliseconds of a mean step."""
    share: float | None = None
    cost: LayerCost | None = None
    algorithm: str = ""
    kernel: str = ""


def profiles(analysis: Analysis) -> Iterator[tuple[CellResult, Use | None, Profile | str]]:
    """Yield each cell that has a profile run with a record, its network where that is known, and its profile or why it has none."""
    cells = {(cell.source, cell.cell_id): cell for cell in analysis.cells}
    of_sources = [(one, [cell.cell for cell in analysis.cells if cell.source == one.label]) for one in analysis.sources]
    told = [((source.label, cell.cell_id), found) for source, own in of_sources for cell, found in profiles_in(source.directory, own)]
    uses = networks(analysis) if told else {}
    for key, found in told:
        use = uses.get(key)
        known = None if use is None or use.as_published else use
        if isinstance(found, str):
            yield cells[key], known, found
        else:
            yield cells[key], known, with_implementations(found.profile, found.onednn, known) if known else found.profile


def step_of(cell: CellResult, profile: Profile) -> float:
    """Return the milliseconds that shares are given of: the median step of the measured runs where a GPU was traced, whose kernels take as
    long as ever; else the traced step, in which operators of a processor take longer too."""
    if profile.device != "cpu" and cell.step_s is not None:
        return 1000 * cell.step_s.value
    return profile.step_ms


def rest_of(profile: Profile, step_ms: float) -> dict[str, float]:
    """Return what a step has beside layers: the rows of the profile, what is done at the same time (below 0), and not computing, which is
    below 0 too where the work in the trace takes longer than the step that was measured."""
    rest = {TITLES.get(name, name): spent for name, spent in profile.other.items() if spent}
    if profile.overlap_ms:
        rest["at the same time"] = -profile.overlap_ms
    return {**rest, "not computing": round(step_ms - profile.worked_ms + profile.overlap_ms, 5) + 0.0}


def stacked(profile: Profile, step_ms: float) -> dict[str, float]:
    """Return the parts of a bar in milliseconds. What is done at the same time is taken from what hides it, communication first."""
    rest = {title.capitalize(): spent for title, spent in rest_of(profile, step_ms).items()}
    hidden = -rest.pop("At the same time", 0.0)
    rest["Forward"] = sum(one.forward_ms for one in profile.layers)
    rest["Backward"] = sum(one.backward_ms for one in profile.layers)
    found = {title: max(0.0, rest.pop(title, 0.0)) for title in STACKED if title != "Other"} | {"Other": sum(rest.values())}
    for title in ("Communication", "Other", "Input", "Backward", "Forward"):
        taken = min(hidden, found[title])
        found[title], hidden = found[title] - taken, hidden - taken
    return {title: found[title] for title in STACKED}


def layers(analysis: Analysis) -> Table:
    """Build the table `layers`: of each profiled cell one row per layer, and what else its step has."""
    found: list[tuple[CellResult, Row]] = []
    devices = set()
    for cell, use, profile in profiles(analysis):
        if isinstance(profile, str):
            found.append((cell, Row(name="no profile", kernel=Reason(profile))))
        else:
            devices.add(profile.device)
            found += [(cell, row) for row in _rows(profile, step_of(cell, profile), {} if use is None else use.costs)]
    cells = [cell for cell, _ in found]
    table = _table([row for _, row in found], devices, [*key_columns(analysis, cells), *size_columns(cells)])
    is_alone = any(cell.num_processes == 1 and row.name == "communication" for cell, row in found)
    caption = sentence(
        "Share: on a GPU of the median step of the measured runs, else of the traced step",
        "Communication of one process: what DistributedDataParallel does there for an exchange" if is_alone else "",
        analysis.shared,
    )
    return replace(table, caption=f"{table.caption} {caption}", columns=linked(analysis, table.columns, cells))


def layers_of_trace(profile: Profile, step_ms: float, costs: Mapping[str, LayerCost]) -> Table:
    """Build the table of the layers of one trace, with shares of `step_ms`. `costs`: of the layers by their names in the trace."""
    return _table(list(_rows(profile, step_ms, costs)), {profile.device})


def _rows(profile: Profile, step_ms: float, costs: Mapping[str, LayerCost]) -> Iterator[Row]:
    for one in profile.layers:
        yield Row(
            name=one.name,
            spent_ms={name: getattr(one, f"{name}_ms") for name in PASSES},
            share=(one.forward_ms + one.backward_ms) / step_ms if step_ms else None,
            cost=costs.get(one.name),
            algorithm=one.algorithm or "",
            kernel=" / ".join(dict.fromkeys(short_kernel(name) for name in (one.forward_kernel, one.backward_kernel) if name)),
        )
    for name, spent in {**rest_of(profile, step_ms), "step": step_ms}.items():
        yield Row(name=name, spent_ms={"forward": spent}, share=spent / step_ms if step_ms else None)


def _table(rows: Sequence[Row], devices: Collection[str], keys: Sequence[Column] = ()) -> Table:
    """Build the table of `rows`, with `keys` as its first columns, and what is counted of layers where that is known."""
    is_counted = any(row.cost for row in rows)
    counted = [
        *[
            numbers(f"{name}_flop_per_s", f"{title} [GFLOP/s]", partial(_in_unit, GIGA), [_rate(row, name) for row in rows])
            for name, title in PASSES.items()
        ],
        numbers(
            "bytes",
            "Moves [MB]",
            partial(_in_unit, MEGA),
            [row.cost and (row.cost.forward_bytes + row.cost.backward_bytes) for row in rows],
        ),
    ]
    columns = (
        *keys,
        words("layer", "Layer", [row.name for row in rows]),
        *[
            numbers(f"{name}_ms", f"{title} [ms]", partial(_in_unit, 1), [row.spent_ms.get(name) for row in rows])
            for name, title in PASSES.items()
        ],
        numbers("share", "Share", lambda value: "" if value is None else percent(value), [row.share for row in rows]),
        *(counted if is_counted else []),
        words("algorithm", "Algorithm", [row.algorithm for row in rows]),
        words("kernel", "Longest kernel", [row.kernel for row in rows], wrap=True),
    )
    return Table(
        name="layers",
        title="Where a step goes",
        caption=sentence(CAPTION, ON_CPU if "cpu" in devices else "", COUNTED if is_counted else ""),
        columns=columns,
        empty="No cell has a profile: the key profile of the study, or slipway profile STUDY, makes them.",
    )


def _rate(row: Row, name: str) -> float | None:
    """Return FLOP/s of a pass; None where it computes none, or where its time is not known."""
    flop, spent_ms = getattr(row.cost, f"{name}_flop", None), row.spent_ms.get(name)
    return flop / (MILLI * spent_ms) if flop and spent_ms else None


def _in_unit(unit: float, value: float | None) -> str:
    return "" if value is None else significant(value / unit)
