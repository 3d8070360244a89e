"""What a node keeps beside the files of a result that storage did not take: all else that its record needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict, cast

from base.typed import Check, Count, Like
from workflow.run.record.outcome import Ending, Status
from workflow.run.record.steps_asked import StepsAsked

SCHEMA: Final = "slipway.ended/1"


class RankEndNote(TypedDict):
    """A RankEnd, in its words."""

    ranks: list[Count]
    host: str
    exit_code: int | None
    time: float
    error_kind: str | None
    error_message: str | None
    oom_kill: bool
    run_stop: bool
    last_lines: str
    failed_rank: Count | None
    checkpoint: Count | None
    wrong_clock: NotRequired[str | None]
    unwatched: NotRequired[str | None]
    sidecar: NotRequired[str | None]
    may_end: NotRequired[bool]
    launcher: NotRequired[str | None]


class EndingNote(TypedDict):
    """How the run ended, or would have."""

    status: Status
    reason: str | None
    rank_end: RankEndNote | None


class RunFacts(TypedDict):
    """What was known of the run before its events were read, as far as it is looked into."""

    allocation: dict[str, Any]
    provenance: dict[str, Any]
    preflight: dict[str, Any] | None
    earlier: dict[str, Any] | None
    nodes: list[dict[str, Any]]
    warnings: list[str]


class EndedNote(TypedDict):
    """`facts`, `times`: as run_record.build_record takes them; `nodes`: positions of those whose files make the result."""

    schema: Literal["slipway.ended/1"]
    facts: Annotated[dict[str, Any], Like(RunFacts)]
    times: dict[str, Any]
    nodes: Annotated[list[Count], Check("the nodes that deliver", bool)]
    parameters: Count | None
    steps: NotRequired[tuple[Count, Count]]
    """Of StepsAsked; a note of an earlier version has none."""
    ending: EndingNote


def ended_note(
    facts: Mapping[str, Any], ending: Ending, times: Mapping[str, Any], nodes: Sequence[int], parameters: int | None, steps: StepsAsked
) -> EndedNote:
    """What record.build_record needs besides the files. `nodes`: positions of those whose files make the result; `parameters`: of
    the cell's model; `steps`: what was asked of each rank."""
    end = ending.rank_end
    told = {} if end is None else {key: value for key, value in end._asdict().items() if key != "windows"}  # they are among the facts
    rank_end = None if end is None else cast(RankEndNote, {**told, "ranks": list(end.ranks)})
    return {
        "schema": SCHEMA,
        "facts": dict(facts),
        "times": dict(times),
        "nodes": list(nodes),
        "parameters": parameters,
        "steps": (steps[0], steps[1]),
        "ending": {"status": ending.status, "reason": ending.reason, "rank_end": rank_end},
    }
