"""Compare whether the frameworks of a study train the same networks, for `slipway check-frameworks`.

It is judged by the first losses of the study's runs, and by whether the ranks of these ended with the same parameters.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from base.errors import ConfigError, RecordError
from base.humanize import some
from workflow.commands.chosen_study import load_chosen_study
from workflow.commands.options import DEFAULT_STUDY, JsonOption, SiteOption, StudyArgument
from workflow.commands.watching import output
from workflow.report import same_network
from workflow.report.same_network import Compared, FirstRun, Group
from workflow.run.record.rate import FIRST_STEPS, first_losses, ranks_text
from workflow.run.record.reading import record_at
from workflow.study.cell import Run
from workflow.study.next_command import command
from workflow.study.series import words_of
from workflow.study.study import Study

# The first losses of the cells of a study.


def first_runs(study: Study, cell_ids: Sequence[str]) -> dict[str, FirstRun]:
    """Return for each cell the first run that ended well and told losses. Raises RecordError for a record that is not to be believed."""
    found: dict[str, FirstRun] = {}
    for planned in sorted(study.runs, key=lambda planned: planned.repeat):
        if planned.cell.cell_id in cell_ids and planned.cell.cell_id not in found:
            path = study.record_path(planned.run_id)
            found_run = _first_run(path) if path.exists() else None
            if found_run is not None:
                found[planned.cell.cell_id] = found_run
    return found


def _first_run(path: Path) -> FirstRun | None:
    """Return the first losses of a run, or None where it did not end well, or told no losses."""
    record, _ = record_at(path, path.parent.name)
    losses = first_losses(record) if record.status == "ok" else {}
    return FirstRun(losses=losses, replicas=None if record.training is None else record.training.replicas) if losses else None


MAX_NAMED: Final = 5


def main(
    study: StudyArgument = DEFAULT_STUDY,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the losses of the first five steps of cells that differ only in their framework, backend, strategy, reader or layout.

    Such cells start from the same weights and see the same batches, so their losses are equal to 1e-5 (`tf32`, `fp16`: 2e-3;
    `bf16`: 1e-2). A cell with other losses has another network, optimizer or other data, and its rate must not be compared. In deep
    networks rounding alone changes losses from step 1 on: of ResNet-50 only step 0 counts. The column `final parameters` says
    whether all ranks ended with the same parameters.

    Exit 19: a cell differs, ranks differ, or no run is finished.

    To check before a study of hours, copy its file with another name after `study:` and in `base` `repeats: 1`, `steps: {warmup: 0,
    measured: 5}` and `dropout: false`.
    """
    loaded = load_chosen_study(study, site)
    found = same_network.groups_of(loaded.cells)
    if not found:
        raise ConfigError(
            f"{loaded.path}: no two cells differ only in their framework (or in its backend, strategy or reader), so there is nothing to "
            "compare; axes: framework: [...]"
        )
    known = first_runs(loaded, [cell.cell_id for cells in found for cell in cells])
    groups = [same_network.compare_losses(cells, known) for cells in found]
    if as_json:
        output.json_value({"study": loaded.name, "groups": [same_network.to_json(group) for group in groups]})
    else:
        _print(loaded, groups)
    _refuse(loaded, groups)


def _print(study: Study, groups: Sequence[Group]) -> None:
    cells = {cell.cell_id: cell for cell in study.cells}
    common = [
        replace(cells[group.cells[0].cell.cell_id], framework="", backend="auto", strategy="ddp", reader="slipway", layout="")
        for group in groups
    ]  # what a group has in common
    words = words_of(common, study.site, 1)
    rows = []
    for cell, group in zip(common, groups, strict=True):
        for number, one in enumerate(group.cells):
            first, last = (None, None) if one.losses is None else (one.losses.get(0), one.losses.get(FIRST_STEPS - 1))
            name = "" if number else words(Run(cell=cell, repeat=1))
            rows.append(
                [
                    name,
                    same_network.trainer_name(one.cell),
                    one.cell.layout,
                    same_network.loss_text(first),
                    same_network.loss_text(last),
                    _ranks(one),
                    _verdict(one, group),
                ]
            )
    output.table(["cell", "framework", "layout", "loss of step 0", f"of step {FIRST_STEPS - 1}", "final parameters", "network"], rows)


def _ranks(one: Compared) -> str:
    found = one.replicas
    if found is None:
        return "-" if one.run is None else "not told"
    if found.apart:
        return f"other ones on {ranks_text(found.apart)} of {found.ranks}"
    return f"equal on {found.ranks} ranks" if found.ranks > 1 else "of 1 rank"


def _verdict(one: Compared, group: Group) -> str:
    if one.losses is None:
        return "not known: no run has finished"
    if not group.is_compared:
        return "cannot be told: each framework draws its own dropout"
    if group.reference is None or one.cell == group.reference.cell:
        return "the others are compared with it"
    if one.differs_at is None:
        own = same_network.compared_steps(one.cell, group.reference.cell) == 1
        return "the same at step 0; after it not compared: its samples come in an order of its own" if own else "the same"
    return f"not the same network: {same_network.difference_in_words(one, group)}"


def _refuse(study: Study, groups: Sequence[Group]) -> None:
    every = [one for group in groups for one in group.cells]
    apart = [(one.cell.cell_id, one.replicas.apart) for one in every if one.replicas is not None and one.replicas.apart]
    problems = {
        "not the same network": [one.cell.cell_id for one in every if one.differs_at is not None],
        "ranks that ended with other parameters than the others of their run": [f"{name} ({ranks_text(ranks)})" for name, ranks in apart],
        f"no finished run ({command(study, 'run')} makes them)": [one.cell.cell_id for one in every if one.losses is None],
        "dropout, for which each framework draws its own numbers; `dropout: false` trains the same network without": list(
            dict.fromkeys(group.cells[0].cell.model for group in groups if not group.is_compared)
        ),
    }
    if found := [f"{what}: {some(names, MAX_NAMED)}" for what, names in problems.items() if names]:
        raise RecordError(f"{study.name}: {'; '.join(found)}")
