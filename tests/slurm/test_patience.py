"""A controller that is away in the middle of a study, for seconds; `python -m tests.slurm.patience` does it for ten minutes of 30 runs."""

from __future__ import annotations

import pytest
from tests.slurm.patience.playing import Fault, Study, Way

from tests.minicluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.long]
RUNS = 6
SILENT_S = 40.0


@pytest.mark.parametrize(("way", "fault"), [("jobs", "stop"), ("jobs", "kill"), ("allocation", "stop"), ("allocation", "kill")])
def test_all_runs_have_one_result_and_none_has_two(cluster: Cluster, way: Way, fault: Fault) -> None:
    """A controller that was killed has forgotten its last seconds: it holds a node for a job that is over until it asks the node again,
    after some minutes."""
    found = Study(cluster, way, fault, RUNS).play(SILENT_S)
    assert found.code == 0, found.said[-6000:]
    assert found.statuses == {"ok": RUNS}
    assert sorted(found.results.values()) == [1] * RUNS, "a run has two results, or none"
    assert "does not answer" in found.said
