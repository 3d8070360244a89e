"""Say where the time of a step goes, from a trace of torch.profiler, for `slipway profile`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from workflow.commands.options import JsonOption
from workflow.report.files import without_garbage_collection


@without_garbage_collection()
def main(
    trace: Annotated[Path, typer.Option("--trace", metavar="FILE", help="A trace of torch.profiler, .json or .json.gz.")],
    step_ms: Annotated[
        float | None, typer.Option("--step-ms", help="Milliseconds of a step without profiler: shares are given of it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NETWORK", help="Show its convolutions by algorithm beside what the trace measured.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="The samples of a step in the trace, for --model.")] = 128,
    as_json: JsonOption = False,
) -> None:
    """Say where the time of a step goes: layers forward and backward, the rest, copies, and why nothing is computed meanwhile."""
    if step_ms is not None and not (0 < step_ms < math.inf):
        raise typer.BadParameter("--step-ms takes milliseconds above 0")
    from workflow.report.profile.profile import profile_json, profile_of
    from workflow.report.profile.trace import read_trace

    found = profile_of(read_trace(trace), step_ms)
    table = None
    if model is not None:
        from extras.profile.convolutions import measured_convolutions

        table = measured_convolutions(found, model, batch_size)
    if as_json:
        from workflow.commands.watching import output
        from workflow.report.formats import to_values

        output.json_value({**profile_json(found), **({"convolutions": to_values(table)["rows"]} if table else {})})
    elif table is not None:
        from workflow.report.terminal import print_table

        print_table(table)
    else:
        from extras.profile.tables import print_profile

        print_profile(found)
