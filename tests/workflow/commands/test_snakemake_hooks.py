"""Who is notified of the end, also where Snakemake calls no other hook of ours."""

from types import SimpleNamespace
from typing import cast

import pytest

from workflow.commands import snakemake_hooks
from workflow.commands.snakemake_hooks import SHOWN, SnakemakeHooks
from workflow.dag.graph import Graph

STUDY = cast(Graph, "study")


def hooks(jobs: int, *, dry: bool = False) -> SnakemakeHooks:
    """The hooks of a Snakemake that had been about to start so many jobs."""
    limits = SimpleNamespace(cores=1, nodes=None)
    workflow = SimpleNamespace(dryrun=dry, touch=False, scheduler=object(), dag=range(jobs), resource_settings=limits)
    return SnakemakeHooks(workflow, STUDY)


@pytest.fixture
def notified(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The studies of whose end somebody was notified."""
    found: list[Graph] = []
    monkeypatch.setenv(SHOWN, "1")
    monkeypatch.setattr(snakemake_hooks, "notify_of", found.append)
    return found


def test_the_end_by_an_exception_is_notified(notified: list[Graph]) -> None:
    hooks(3).at_exit()
    assert notified == [STUDY]


def test_an_end_is_notified_once(notified: list[Graph]) -> None:
    one = hooks(3)
    one.succeed()
    one.at_exit()
    assert notified == [STUDY]


def test_where_nothing_was_to_be_done_nobody_is_notified(notified: list[Graph]) -> None:
    hooks(0).at_exit()
    hooks(3, dry=True).at_exit()
    assert notified == []
