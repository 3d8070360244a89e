"""Who is told of the end, also where Snakemake calls no hook of ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from workflow.commands import ending
from workflow.commands.ending import SHOWN, Ending
from workflow.dag.graph import Graph

STUDY = cast(Graph, "study")


def workflow(jobs: int, *, dry: bool = False) -> Any:
    """Of Snakemake, what is looked at; it had been about to start so many jobs."""
    limits = SimpleNamespace(cores=1, nodes=None)
    return SimpleNamespace(dryrun=dry, touch=False, scheduler=object(), dag=range(jobs), resource_settings=limits)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The studies whose end was told."""
    found: list[Graph] = []
    monkeypatch.setenv(SHOWN, "1")
    monkeypatch.delenv(ending.WOULD_RUN, raising=False)
    monkeypatch.setattr(ending, "notify_of", found.append)
    return found


def test_an_end_by_an_exception_is_told(told: list[Graph]) -> None:
    Ending(STUDY).at_exit(workflow(3))
    assert told == [STUDY]


def test_an_end_is_told_once(told: list[Graph]) -> None:
    one = Ending(STUDY)
    one.tell()
    one.at_exit(workflow(3))
    assert told == [STUDY]


def test_where_nothing_was_to_be_done_nobody_is_told(told: list[Graph]) -> None:
    Ending(STUDY).at_exit(workflow(0))
    Ending(STUDY).at_exit(workflow(3, dry=True))
    assert told == []
