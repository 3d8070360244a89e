"""Which nodes a run's next attempt keeps off, by what the records of the earlier ones say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from base.errors import SubmitError, SubmitUnsure
from base.seal import publish_sealed
from cluster.schedulers.jobs import RUN, BatchJob, JobSize
from cluster.schedulers.slurm import plan_allocation
from cluster.schedulers.slurm.jobs import sbatch_options
from cluster.types import AllocationRequest
from workflow.dag.submissions import Submissions
from workflow.run.record.outcome import Ending, RankEnd, of_what_is_missing
from workflow.run.storage.results import FORGOTTEN_S, MOST_NODES, avoided

NOW = 1_800_000_000.0
END = "2027-01-15T08:00:00+00:00"
"""At that moment."""


def record(*nodes: Any, kind: str = "prevented", end: str = END) -> dict[str, Any]:
    return {"kind": kind, "time": {"end": end}, "failed_nodes": list(nodes)}


def test_nodes_of_the_attempts_since_the_last_result() -> None:
    assert avoided([record("n2"), record("n1", "n2"), record("n9", kind="result"), record("n8")], NOW) == ("n2", "n1")
    assert avoided([], NOW) == ()


def test_what_is_old_torn_or_no_name_does_not_count() -> None:
    assert avoided([record("n1")], NOW + FORGOTTEN_S + 1) == ()
    assert avoided([{"kind": "prevented"}, record("n1", end="yesterday"), record("-x", "a b", 7, "n,m", "", "n2")], NOW) == ("n2",)
    assert len(avoided([record(*(f"n{i}" for i in range(99)))], NOW)) == MOST_NODES


RANK_END = RankEnd(ranks=(0,), host="n3", exit_code=-7, time=0.0, last_lines="")


@pytest.mark.parametrize(
    ("ending", "nodes"),
    [
        (Ending(status="node_lost", reason="gone", nodes=("n1",)), ("n1",)),
        (Ending(status="node_lost", reason="nobody knows which"), ()),
        (Ending(status="storage", reason="its disk", rank_end=RANK_END), ("n3",)),
        (Ending(status="killed", reason="by somebody", rank_end=RANK_END), ()),
        (Ending(status="error", reason="a result", nodes=("n1",)), ()),
        (of_what_is_missing({"n1": "x is not there"}, 2), ("n1",)),
        (of_what_is_missing({"n1": "x is not there"}, 1), ()),
    ],
)
def test_an_ending_names_the_nodes_at_fault(ending: Ending, nodes: tuple[str, ...]) -> None:
    assert ending.failed_nodes == nodes


def test_slurm_is_asked_for_other_nodes() -> None:
    job = BatchJob(name="a", size=JobSize(nodes=1, minutes=1, exclude=("n1", "n2")), output="o", directory="d", argv=("x",))
    assert "--exclude=n1,n2" in sbatch_options(job)
    plain = BatchJob(name="a", size=JobSize(nodes=1, minutes=1), output="o", directory="d", argv=("x",))
    assert not [option for option in sbatch_options(plain) if "exclude" in option]


def test_in_one_allocation_other_nodes_come_first() -> None:
    addresses = {f"n{i}": f"10.0.0.{i}" for i in range(4)}
    request = AllocationRequest(nodes=2, gpus_per_node=1, largest_nodes=2, device="cpu", avoid=("n0", "n2"))
    found = plan_allocation(request, {}, {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[0-3]"}, addresses, None)
    assert [node.name for node in found.nodes] == ["n1", "n3", "n0", "n2"]


class Asked:
    """In the place of a scheduler's JOBS: it refuses jobs that leave nodes out, if `full`."""

    def __init__(self, *, full: bool, refusal: type[SubmitError] = SubmitError) -> None:
        self.full, self.refusal, self.sizes = full, refusal, list[JobSize]()

    def submit(self, job: BatchJob, _patience_s: float) -> str:
        self.sizes.append(job.size)
        if self.full and job.size.exclude:
            raise self.refusal("Requested node configuration is not available")
        return "7"


@pytest.mark.parametrize("full", [False, True])
def test_a_run_s_next_job_asks_for_other_nodes_or_for_any_where_there_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], full: bool
) -> None:
    end = datetime.now(UTC).isoformat()
    attempt = tmp_path / "runs" / "a-r1" / "attempts" / "1"
    attempt.mkdir(parents=True)
    publish_sealed(attempt / "record.json", record("n2", end=end))
    asked = Asked(full=full)
    submissions = Submissions.__new__(Submissions)
    submissions.jobs, submissions._mark, submissions._directory = cast(Any, asked), "slipway=x", str(tmp_path)
    submissions.watched = cast(Any, SimpleNamespace(lost={(RUN, "c-r1"): ("n3",)}))
    submissions.submit(RUN, "a-r1", JobSize(nodes=1, minutes=1), "true")
    submissions.submit(RUN, "c-r1", JobSize(nodes=1, minutes=1), "true")
    submissions.submit(RUN, "b-r1", JobSize(nodes=1, minutes=1), "true")
    again = [()] if full else []
    assert [size.exclude for size in asked.sizes] == [("n2",), *again, ("n3",), *again, ()]
    assert ("no job without n2, where a-r1 failed before, so with any nodes" in capsys.readouterr().err) == full


def test_a_job_that_may_be_in_the_queue_is_not_submitted_again(tmp_path: Path) -> None:
    asked = Asked(full=True, refusal=SubmitUnsure)
    submissions = Submissions.__new__(Submissions)
    submissions.jobs, submissions._mark, submissions._directory = cast(Any, asked), "slipway=x", str(tmp_path)
    submissions.watched = cast(Any, SimpleNamespace(lost={(RUN, "c-r1"): ("n3",)}))
    with pytest.raises(SubmitUnsure):
        submissions.submit(RUN, "c-r1", JobSize(nodes=1, minutes=1), "true")
    assert [size.exclude for size in asked.sizes] == [("n3",)]
