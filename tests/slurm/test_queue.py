"""What happens to jobs of runs in a real queue: two starts at once, a job that cannot be started, one that is held, a node that dies."""

import re
from collections.abc import Iterator

import pytest

from tests.minicluster import Cluster
from tests.minicluster.studies import LIMIT_S, Started
from tests.minicluster.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def started(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Started]:
    nodes, repeats = request.param
    started = Started(cluster, re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[-40:].strip("-"), nodes, repeats)
    yield started
    started.end()


@pytest.mark.parametrize("started", [(1, 4)], indirect=True, ids=["4 runs"])
@pytest.mark.parametrize("at_once", [True, False])
def test_of_two_commands_each_run_is_made_once(started: Started, at_once: bool) -> None:
    """At once, both may submit a job for a run; the one that comes later is refused it, and the other is waited for. The site wants a
    comment of its own in all jobs, as sites have it that let docker into such jobs only."""
    started.directives("--comment=docker")
    started.start()
    if not at_once:
        wait_until(lambda: len(started.jobs()) == 4 and bool(started.began()), LIMIT_S, "four jobs in the queue and a run that trains")
        comments = started.slurm("squeue", "--noheader", "--format=%k").splitlines()
        assert all(re.fullmatch(r"docker rule_stage_train_push_wildcards_\S+ slipway=\S+", comment) for comment in comments), comments
    started.start()
    if at_once:
        wait_until(lambda: bool(started.began()), LIMIT_S, "a run that trains")
    else:
        started.wait_for("is in the queue already for")
    started.go_on.touch()
    assert started.codes() == [0, 0], started.said()
    assert started.said().count("4 of 4 runs ok") == 2
    assert [record["status"] for record in started.attempts()] == ["ok"] * 4
    report = (started.results / "report.html").stat().st_mtime_ns
    assert report > max(path.stat().st_mtime_ns for path in started.results.glob("runs/*/record.json"))
    argv = ["slipway", "submit", "--print", str(started.place / "study.yaml"), "--site", str(started.site)]
    (started.place / "study.yaml").write_text((started.place / "study.yaml").read_text().replace("batch_size: 1", "batch_size: 2"))
    assert started.slurm(*argv).splitlines().count("#SBATCH --comment=docker") == 1


@pytest.mark.parametrize("started", [(1, 4)], indirect=True, ids=["4 runs"])
def test_of_a_submission_and_a_run_command_side_by_side_each_run_is_made_once(started: Started) -> None:
    """`slipway submit` sees no `slipway run` whose jobs are not in the queue yet, and `slipway run` does not look for a submission."""
    started.start("submit", "--wait")
    wait_until(lambda: bool(started.began()), LIMIT_S, "a run of the submission trains")
    started.start()
    wait_until(lambda: len(started.began()) > 1, LIMIT_S, "a run on another node trains, in a job of its own")
    started.go_on.touch()
    assert started.codes() == [0, 0], started.said()
    assert started.said().count("4 of 4 runs ok") == 2
    attempts = started.attempts()
    assert [record["status"] for record in attempts] == ["ok"] * 4
    assert len({record["job_id"] for record in attempts}) > 1


@pytest.mark.parametrize("started", [(1, 1)], indirect=True, ids=["1 run"])
def test_a_job_whose_launch_has_failed_is_told_and_made_on_another_node(started: Started) -> None:
    """Slurm holds the job."""
    conf = started.cluster.spec.slurm_conf
    before, prolog = conf.read_text(), started.place / "prolog.sh"
    prolog.write_text("#!/bin/sh\ntest $(hostname) != n1\n")
    prolog.chmod(0o755)
    started.go_on.touch()
    try:
        conf.write_text(f"{before}Prolog={prolog}\n")
        started.slurm("scontrol", "reconfigure")
        started.start()
        assert started.codes() == [0], started.said()
    finally:
        conf.write_text(before)
        started.slurm("scontrol", "reconfigure")
        started.slurm("scontrol", "update", "nodename=n1", "state=resume")
    assert "Slurm could not start it on its nodes (launch failed requeued held)" in started.said()
    assert "was taken out of the queue: Slurm could not start it on its nodes" in started.said()
    (record,) = started.attempts()
    assert record["status"] == "ok"
    assert [node["name"] for node in record["nodes"]] != ["n1"]


@pytest.mark.parametrize("started", [(1, 1)], indirect=True, ids=["1 run"])
def test_a_job_that_is_held_is_told_with_what_to_type_and_runs_when_it_is_let_go(started: Started) -> None:
    for node in started.cluster.nodes:
        started.slurm("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    started.go_on.touch()
    try:
        started.start()
        wait_until(lambda: started.jobs() != [], LIMIT_S, "a job in the queue")
        (job,) = started.jobs()
        started.slurm("scontrol", "hold", job)
    finally:
        for node in started.cluster.nodes:
            started.slurm("scontrol", "update", f"nodename={node}", "state=resume")
    started.wait_for(f"job {job} waits")
    started.wait_for("held (JobHeldAdmin)")  # root has held it
    argv = ["slipway", "status", str(started.place / "study.yaml"), "--site", str(started.site)]
    assert "held (JobHeldAdmin)" in " ".join(started.slurm(*argv).split())
    started.slurm("scontrol", "release", job)
    assert started.codes() == [0], started.said()


@pytest.mark.parametrize("started", [(2, 1)], indirect=True, ids=["2 nodes"])
def test_the_next_job_of_a_run_whose_node_has_died_asks_for_others(started: Started) -> None:
    """Where Slurm puts the job back into the queue itself, that one has its nodes to choose again; the site says --no-requeue."""
    started.directives("--no-requeue")
    started.start()
    wait_until(lambda: len(started.began()) == 2, LIMIT_S, "a run on two nodes")
    (job,) = started.jobs()
    head = next(word for word in started.slurm("scontrol", "-o", "show", "job", job).split() if word.startswith("BatchHost="))[10:]
    (dead,) = started.began() - {head}
    started.cluster.kill(dead)
    try:
        started.go_on.touch()
        assert started.codes() == [0], started.said()
        first, second = started.attempts()
        assert (first["status"], first["failed_nodes"], second["status"]) == ("node_lost", [dead], "ok"), first["status_reason"]
        assert dead not in {node["name"] for node in second["nodes"]}
        assert first["job_id"] != second["job_id"]
        assert f" ExcNodeList={dead} " in started.slurm("scontrol", "-o", "show", "job", str(second["job_id"]))
    finally:
        started.cluster.heal(dead)
