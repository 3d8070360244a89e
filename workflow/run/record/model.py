"""The record as a checked model, and its JSON Schema. For tools and tests: the supervisor writes records without pydantic.

`python -m workflow.run.record.model` writes config/schemas/record.schema.json; with `--check` it says whether that is current (exit 1 if
not); with `--validate FILE...` it checks records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from base.errors import RecordError
from base.publish import publish
from base.seal import read_sealed
from cluster.installation import SCHEMAS
from workflow.run.record.model_parts import (
    Cell,
    Checkpoint,
    Count,
    Dataset,
    FailedRank,
    File,
    FromOne,
    Node,
    Part,
    Performance,
    Preflight,
    ResumedFrom,
    Seconds,
    Steps,
    Times,
    Training,
    WindowSeen,
)
from workflow.run.record.outcome import PREVENTED, RESULT, TABLE, Status
from workflow.run.record.step_clock import BESIDE

SCHEMA_FILE: Final = SCHEMAS / "record.schema.json"
CLOSING_RATIO: Final = 0.01
CLOSING_S: Final = 0.001


class RunRecord(Part):
    """One attempt of one run, schema slipway.run/1. Null: not measured."""

    schema_: Annotated[Literal["slipway.run/1"], Field(alias="schema")]
    run_id: str
    study: str
    cell: Cell
    repeat: FromOne
    attempt: FromOne
    result_number: FromOne | None
    status: Status
    kind: Literal["result", "prevented"]
    status_reason: str | None
    failed_rank: FailedRank | None
    failed_nodes: list[str] = Field(default_factory=list)
    time: Times
    run_s: Seconds
    steps_s: Steps
    scheduler: str
    scheduler_version: str | None
    job_id: str
    restart_count: Count
    site: str
    engine: str
    exclusive: bool | None
    oversubscribed: bool
    busy: list[str] = Field(default_factory=list)
    nodes: list[Node]
    world_size: FromOne
    device: Literal["cpu", "cuda"]
    threads_per_rank: FromOne
    steps_source: Literal["program", "log", "none"] | None = None
    preflight: Preflight | None
    performance: Performance | None
    training: Training | None
    window_seen: WindowSeen | None = None
    resumed_from: ResumedFrom | None
    checkpoint: Checkpoint | None
    dataset: Dataset | None
    model_macs: Count | None = None
    model_first_macs: Count | None = None
    provenance: dict[str, Any]
    warnings: list[str]
    files: list[File]
    seal: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind != (RESULT if TABLE[self.status] is None else PREVENTED):
            raise ValueError(f"status {self.status!r} is no {self.kind}")
        if (self.result_number is None) != (self.kind == PREVENTED):
            raise ValueError(f"result_number {self.result_number!r} of a {self.kind} attempt")
        if (self.status == "ok") != (self.status_reason is None):
            raise ValueError(f"status_reason {self.status_reason!r} of status {self.status!r}")
        total = sum(seconds or 0.0 for step, seconds in self.steps_s.model_dump().items() if step not in BESIDE)
        if abs(total - self.run_s) > max(CLOSING_RATIO * self.run_s, CLOSING_S):
            raise ValueError(f"stage to release add up to {total:g} s, run_s is {self.run_s:g} s")
        if self.world_size != self.cell.nodes * self.cell.gpus_per_node or len(self.nodes) != self.cell.nodes:
            raise ValueError(f"world_size {self.world_size} on {len(self.nodes)} nodes is not what the cell asks")
        return self


def validate_record(value: Any, where: str = "the record") -> RunRecord:
    """The record in `value`, as JSON gives it. Raises RecordError naming every wrong field."""
    try:
        return RunRecord.model_validate_json(json.dumps(value))
    except (ValidationError, ValueError) as error:
        raise RecordError(f"{where} is not a valid record: {error}") from error


def schema_text() -> str:
    """The JSON Schema as the text of its file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunRecord.model_json_schema()}
    return json.dumps(schema, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the schema, or check. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.record.model", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is not current")
    parser.add_argument("--validate", nargs="+", type=Path, metavar="FILE", help="check these records")
    options = parser.parse_args(arguments)
    if options.validate:
        return _validate(options.validate)
    current = SCHEMA_FILE.exists() and SCHEMA_FILE.read_text(encoding="utf-8") == schema_text()
    if options.check and not current:
        sys.stderr.write(f"{SCHEMA_FILE} is not what the model says; `make schemas` writes it\n")
    elif not current:
        SCHEMA_FILE.parent.mkdir(parents=True, exist_ok=True)
        publish(SCHEMA_FILE, schema_text().encode())
    return int(options.check and not current)


def _validate(paths: Sequence[Path]) -> int:
    wrong = 0
    for path in paths:
        try:
            validate_record(read_sealed(path), str(path))
        except RecordError as error:
            sys.stderr.write(f"{error}\n")
            wrong += 1
    return RecordError.exit_code if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
