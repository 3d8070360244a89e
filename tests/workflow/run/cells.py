"""A cell.json and a site, with some of their keys changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from workflow.run.plan import CellDocument
from workflow.run.record.outcome import Ending
from workflow.run.record.run_record import ending_note
from workflow.study.cell import Cell
from workflow.study.site import Cache, Site

DOCUMENT: Final = CellDocument(
    cell_id="one",
    framework="pytorch",
    mode="train",
    model="lenet",
    dataset="digits",
    dataset_spec={"source": "sklearn-digits"},
    batch_size=8,
    global_batch_size=8,
    nodes=1,
    gpus_per_node=1,
    precision="fp32",
    layout="nchw",
    comm_hook="none",
    device="cpu",
    threads=1,
    seed=0,
    optimizer={"name": "sgd"},
    steps={"warmup": 0, "measured": 1, "total": 1},
    epochs=None,
    save_parameters=False,
    run_id="one-r1",
    repeat=1,
    attempt=1,
    model_layers=({"kind": "relu"},),
    model_parameters=0,
    model_variant="a variant",
)


def document(**changes: Any) -> CellDocument:
    """DOCUMENT with these fields."""
    return replace(DOCUMENT, **changes)


def cell(**changes: Any) -> Cell:
    """The cell of DOCUMENT with these fields."""
    return Cell.from_json(document(**changes).to_json())


def made_site(storage: Path = Path("/nowhere"), **keys: Any) -> Site:
    """A site with these keys."""
    return Site(name="here", storage=storage, cache=Cache(path=storage / "cache"), **keys)


def ended_note(facts: dict[str, Any], ending: Ending, times: dict[str, Any], nodes: list[int]) -> dict[str, Any]:
    """The note of a result that storage did not take, as JSON has it."""
    own = {"schema": "slipway.ended/1", "parameters": 7, "steps": [8, 6]}
    return {**own, "facts": facts, "times": times, "nodes": nodes, "ending": msgspec.to_builtins(ending_note(ending))}
