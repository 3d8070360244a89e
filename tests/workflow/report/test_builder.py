"""The records that the other tests are made of are valid by the model of those who write records."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workflow.report.builder import failed, make_cell, make_record
from tests.workflow.run.valid import validate_record

CELLS = [
    make_cell(),
    make_cell(nodes=2, gpus_per_node=4, device="cuda", global_batch_size=256),
    make_cell(mode="infer", steps=None, epochs=3),
]
ENDS = ["oom", "nan", "timeout", "hang", "error", "killed", "node_lost", "storage", "preempted", "cancelled"]


@pytest.mark.parametrize(
    "record", [*(make_record(cell, 2, step_s=0.37) for cell in CELLS), *(failed(CELLS[0], status=end) for end in ENDS)]
)
def test_a_built_record_is_valid(record: dict[str, Any]) -> None:
    validate_record(record)
