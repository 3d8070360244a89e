"""Say where the time of a step goes, from a trace of torch.profiler or from the profile runs of a study, for `slipway profile`."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from workflow.commands.options import JsonOption, RetryOption, SiteOption, snakemake_config
from workflow.report.files import without_garbage_collection

if TYPE_CHECKING:
    from workflow.report.layers_table import Use

IMAGE: Final = re.compile(r"([0-9]{1,5})x([0-9]{1,5})x([0-9]{1,5})")


@without_garbage_collection()
def main(  # noqa: PLR0913 - its options
    study: Annotated[Path | None, typer.Argument(metavar="[STUDY]", help="The study file, each cell of which gets a profile run.")] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="A trace of torch.profiler, .json or .json.gz, instead of a study.")
    ] = None,
    step_ms: Annotated[
        float | None, typer.Option("--step-ms", help="Milliseconds of a step without profiler: shares of the trace are given of it.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NETWORK", help="The network of the trace: with FLOP/s and bytes of layers, and convolutions by algorithm."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="The samples of a step in the trace, for --model; default: 128.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="The precision of the step, for the bytes of --model; default: fp32.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="CxHxW", help="Its images, such as 3x224x224; default: as --model is published.")
    ] = None,
    site: SiteOption = None,
    retry: RetryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say where the time of a step goes: layers forward and backward, the rest, copies, and why nothing is computed meanwhile.

    With STUDY it runs what has no result yet as `slipway run` does, with one profile run per cell, and prints the table `layers`.
    With --trace it reads a trace of torch.profiler, Slipway's or anybody's; exit 19 if the file is no trace.
    """
    if (study is None) == (trace is None):
        raise typer.BadParameter("give a study file, or --trace FILE")
    if step_ms is not None and (trace is None or as_json or not (0 < step_ms < math.inf)):
        raise typer.BadParameter("--step-ms takes milliseconds above 0, for the shares in the table of --trace")
    if model is not None and trace is None:
        raise typer.BadParameter("--model shows what a trace measured: give --trace FILE")
    if model is None and (batch_size, precision, image) != (None, None, None):
        raise typer.BadParameter("--batch-size, --image and --precision tell of the network of a trace: give --model NETWORK")
    if trace is not None:
        _of_trace(trace, step_ms, None if model is None else _network(model, batch_size or 128, precision or "fp32", image), as_json)
    elif study is not None:
        _of_study(study, site, retry, as_json)


def _network(name: str, batch_size: int, precision: str, image: str | None) -> Use:
    """Return the network that was traced. Raises BadParameter, and ConfigError for an unknown network or one that does not fit."""
    from containers.models.facts import usual
    from containers.models.memory import ACTIVATION_BYTES
    from workflow.report.layers_table import Use

    shape = None if image is None else IMAGE.fullmatch(image)
    if image is not None and shape is None:
        raise typer.BadParameter(f"--image takes channels x height x width, such as 3x224x224; found {image!r}")
    if precision not in ACTIVATION_BYTES:
        raise typer.BadParameter(f"--precision takes one of {', '.join(ACTIVATION_BYTES)}; found {precision!r}")
    model = usual(name, None if shape is None else (int(shape[1]), int(shape[2]), int(shape[3])))
    return Use(model=model, batch_size=batch_size, precision=precision)


def _of_trace(trace: Path, step_ms: float | None, use: Use | None, as_json: bool) -> None:
    from extras.profile.tables import print_profile
    from workflow.commands.watching import output
    from workflow.report.formats import to_values
    from workflow.report.layers_table import layers_in_trace
    from workflow.report.model_tables import convolutions_of_trace
    from workflow.report.profile.profile import profile_of
    from workflow.report.profile.trace import read_trace
    from workflow.report.terminal import print_table

    found = profile_of(read_trace(trace))
    costs = {} if use is None else {layer.name: use.costs[name] for name, layer in layers_in_trace(found, use.model).items()}
    convolutions = None if use is None else convolutions_of_trace(found, use)
    if as_json:
        values = msgspec.to_builtins(found)
        for layer in values["layers"]:
            layer.update(msgspec.to_builtins(costs.get(layer["name"], {})))
        output.json_value({**values, **({} if convolutions is None else {"convolutions": to_values(convolutions)["rows"]})})
        return
    print_profile(found, step_ms, costs, "" if use is None else f"{use.model.name}, {use.input}, batch {use.batch_size}, {use.precision}")
    if convolutions is not None and convolutions.num_rows:
        output.line()
        print_table(convolutions)


def _of_study(path: Path, site: str | None, retry: str | None, as_json: bool) -> None:
    from workflow.commands.chosen_study import report_outputs
    from workflow.commands.run import run_study
    from workflow.commands.watching import output
    from workflow.study.study import load_study

    report_outputs()
    run_study([str(path)], {**snakemake_config(site, retry, False), "profile": "yes"}, table=False)
    from workflow.report.analysis import analyse
    from workflow.report.collect import collect
    from workflow.report.layers_table import layers
    from workflow.report.profile.runs import profiles_in
    from workflow.report.terminal import print_table

    study = load_study(path, site, os.environ, profile=True)
    if as_json:
        found = profiles_in(study.results_dir, study.cells)
        output.json_value({cell.cell_id: {"problem": one} if isinstance(one, str) else msgspec.to_builtins(one) for cell, one in found})
    else:
        print_table(layers(analyse(collect([study.results_dir]))))
