"""What the runs of a study ask of Slurm, in both ways; and in which way a profile and a site do not fit."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from base.errors import ConfigError
from base.process import CODE_ROOT
from cluster.schedulers.jobs import JobSize
from cluster.schedulers.slurm.jobs import batch_script
from tests.workflow.study.studies import changed, write
from workflow.dag.execution import Mode, mode_of, refuse_wrong_executor, refuse_wrong_way
from workflow.dag.graph import Graph, shard_threads
from workflow.dag.job_plans import Width, job_minutes, minutes_for, num_rounds, plan_submission, resources_of, size_of
from workflow.dag.refusals import load_graph
from workflow.study.cell import node_sets
from workflow.study.study import load_study

pytestmark = pytest.mark.processes

SITE = "storage: storage\ncache: {path: /local/slipway}\nscheduler: slurm\ndevice: cpu\nqueue: main\n"
INSIDE = {"SLURM_JOB_ID": "7"}
JOBS, ALLOCATION = Mode(way="jobs"), Mode(way="allocation", nodes=2, job="7-0")


def graph(root: Path, mode: Mode | None, site: str = SITE, environ: dict[str, str] | None = None, **changes: Any) -> Graph:
    """The graph of a study, without a look at storage and at what its runs need."""
    (root / "here.yaml").write_text(site)
    return Graph(load_study(write(root, changed(**changes)), str(root / "here.yaml"), environ or {}), retry_failed=False, mode=mode)


def loaded(root: Path, mode: Mode, site: str, environ: dict[str, str]) -> Graph:
    (root / "here.yaml").write_text(site)
    return load_graph({"site": str(root / "here.yaml")}, [write(root, changed())], root, environ, mode)


def of(found: Graph, nodes: int) -> dict[str, Any]:
    """The resources of the first run of so many nodes, as Snakemake evaluates them; None is not set."""
    run = next(run for run in found.study.runs if run.cell.nodes == nodes)
    values = {name: value(SimpleNamespace(run=run.run_id)) if callable(value) else value for name, value in found.run_resources.items()}
    return {name: value for name, value in values.items() if value is not None}


def test_a_run_on_whole_nodes_and_what_it_says_of_its_job(tmp_path: Path) -> None:
    found = graph(tmp_path, JOBS)
    one = {"nodes": 1, "memory_mb": 0, "runtime": 33, "queue": "main", "whole_nodes": 1}
    assert [of(found, nodes) for nodes in (1, 2)] == [one, {**one, "nodes": 2}]
    run = next(run for run in found.study.runs if run.cell.nodes == 2)
    requested = f"{run.run_id}.after-1"
    assert f"{found.descriptions:{requested}}".endswith("; push (job: nodes=2 runtime=33 memory_mb=0 whole_nodes=1 queue=main)")
    here = graph(tmp_path, Mode(), "storage: storage\ncache: {path: cache}\ndevice: cpu\n")
    assert (here.run_resources, here.shard_resources) == ({}, {}), "on this machine it asks for nothing"
    assert f"{here.descriptions:{requested}}".endswith("; push")


def test_a_run_with_gpus_and_all_that_a_site_can_say(tmp_path: Path) -> None:
    more = (
        "gpus_per_node: 4\ncpus_per_node: 64\naccount: proj\nqos: long\nconstraint: a100&ib\nwalltime: 20m\n"
        "directives: ['--reservation=thursdays', '--licenses=a:1']\n"
    )
    found = of(graph(tmp_path, JOBS, SITE + more, limits={"walltime": "10m"}), 2)
    assert found == {
        "nodes": 2,
        "gpus": 1,
        "cores": 64,
        "memory_mb": 0,
        "runtime": 13,
        "queue": "main",
        "account": "proj",
        "qos": "long",
        "constraint": "a100&ib",
        "whole_nodes": 1,
        "directives": "--reservation=thursdays --licenses=a:1",
    }


def test_a_run_on_a_share_of_a_node(tmp_path: Path) -> None:
    site = SITE + "share_nodes: true\ngpus_per_node: 4\ncpus_per_node: 64\nmemory_per_node: 256GiB\n"
    found = of(graph(tmp_path, JOBS, site), 1)
    assert (found["gpus"], found["cores"], found["memory_mb"], found["whole_nodes"]) == (1, 16, 65536, 0)


def test_what_all_runs_have_in_common_is_no_function(tmp_path: Path) -> None:
    found = graph(tmp_path, JOBS).run_resources
    assert {name for name, value in found.items() if callable(value)} == {"nodes"}
    alike = graph(tmp_path, JOBS, axes={"nodes": [2]}).run_resources
    assert not [name for name, value in alike.items() if callable(value)]


def test_in_an_allocation_only_nodes_are_counted(tmp_path: Path) -> None:
    found = graph(tmp_path, ALLOCATION, environ=INSIDE)
    assert [of(found, nodes) for nodes in (1, 2)] == [{"nodes": 1}, {"nodes": 2}]
    assert found.shard_resources == {}
    assert found.mode.nodes == 2
    assert found.run_threads(1024) == 1
    assert (shard_threads("allocation", 1024, 8), shard_threads("jobs", None, 8), shard_threads("local", 4, 4)) == (128, 1, 1)


def test_runs_in_an_allocation_wait_for_their_datasets_on_all_nodes(tmp_path: Path) -> None:
    found = graph(tmp_path, ALLOCATION, environ=INSIDE)
    first, *others = found.study.runs
    names = {found.study.build_dir(run.cell.dataset).name for run in found.study.runs}
    assert found.staged(SimpleNamespace(run=first.run_id)) == [f"{found.results_dir}/staged/7-0/{name}.json" for name in sorted(names)]
    record = found.study.record_path(first.run_id)
    record.parent.mkdir(parents=True)
    record.write_text('{"status": "ok", "result_number": 1}')
    again = graph(tmp_path, ALLOCATION, environ=INSIDE)
    assert again.staged(SimpleNamespace(run=first.run_id)) == []
    assert again.staged(SimpleNamespace(run=others[0].run_id))


@pytest.mark.parametrize("mode", [Mode(), JOBS, Mode(way="allocation", nodes=1, job="7-0")])
def test_elsewhere_each_run_stages_what_it_needs(tmp_path: Path, mode: Mode) -> None:
    site = SITE if mode.way != "local" else "storage: storage\ncache: {path: cache}\ndevice: cpu\n"
    environ = INSIDE if mode.way == "allocation" else None
    assert graph(tmp_path, mode, site, environ, axes={"nodes": [1]}).staged == []


def test_a_shard_is_a_small_job(tmp_path: Path) -> None:
    assert graph(tmp_path, JOBS).shard_resources == {
        "nodes": 1,
        "cores": 1,
        "memory_mb": 2000,
        "runtime": 240,
        "queue": "main",
        "whole_nodes": 0,
    }


def test_the_job_outlives_the_run_by_what_the_push_needs(tmp_path: Path) -> None:
    site = graph(tmp_path, None).study.site
    assert job_minutes(600.0, site) == 13
    for walltime in ("12m", "12m30s"):  # a queue with this limit refuses 13 minutes
        limited = graph(tmp_path, None, f"{SITE}walltime: {walltime}\n", limits={"walltime": "10m"}).study.site
        assert job_minutes(600.0, limited) == 12


@pytest.mark.parametrize(
    ("scopes", "limits", "mode"),
    [
        ({}, {}, Mode()),
        ({"mem_mb": "local"}, {"_cores": 2, "_nodes": None}, Mode()),
        ({"nodes": "local"}, {}, JOBS),
        ({}, {"nodes": 2}, ALLOCATION),
        ({}, {"nodes": SimpleNamespace(value=2)}, ALLOCATION),
    ],
)
def test_the_way_is_read_from_the_profile(scopes: dict[str, str], limits: dict[str, Any], mode: Mode) -> None:
    assert mode_of(scopes, limits, INSIDE) == mode


@pytest.mark.parametrize(
    ("scheduler", "mode", "environ", "words"),
    [
        ("slurm", Mode(), {}, "this profile runs on this machine, and the site 'here' says scheduler: slurm; `slipway run STUDY` takes"),
        ("slurm", Mode(), INSIDE, "this profile runs on this machine, and the site 'here' says scheduler: slurm; `slipway run STUDY`"),
        ("slurm", ALLOCATION, {}, "this is not a job of Slurm; `slipway run STUDY` takes the profile"),
        ("local", JOBS, {}, "says scheduler: local; `slipway run STUDY` takes the profile that fits"),
        ("local", ALLOCATION, {}, "this profile runs inside a job of a scheduler, and the site 'here' says scheduler: local"),
    ],
)
def test_a_profile_that_does_not_fit_the_site(tmp_path: Path, scheduler: str, mode: Mode, environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        loaded(tmp_path, mode, f"storage: s\ncache: {{path: /c}}\nscheduler: {scheduler}\n", environ)


def test_profiles_that_fit(tmp_path: Path) -> None:
    site = graph(tmp_path, None).study.site
    refuse_wrong_way(site, "jobs", {})
    refuse_wrong_way(site, "jobs", INSIDE)
    refuse_wrong_way(site, "allocation", INSIDE)
    refuse_wrong_executor("jobs", "slipway")
    refuse_wrong_executor("allocation", "local")


@pytest.mark.parametrize(("way", "executor"), [("jobs", "local"), ("local", "slipway"), ("allocation", "slipway"), ("local", "lsf")])
def test_an_executor_that_is_not_the_profiles(way: Any, executor: str) -> None:
    with pytest.raises(ConfigError, match=executor):
        refuse_wrong_executor(way, executor)


def test_a_run_that_never_fits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nodes=1: lenet-\S+ needs 2 nodes"):
        loaded(tmp_path, Mode(way="allocation", nodes=1), SITE, INSIDE)


def test_the_environment_of_a_snakemake_that_submits(tmp_path: Path) -> None:
    ours = graph(tmp_path, JOBS).environment({"PATH": "/bin", "PYTHONPATH": "/mine"})
    assert ours["PYTHONPATH"] == f"{CODE_ROOT}:/mine"
    assert ours["SLIPWAY_SUBMITS"].startswith("slurm slipway=small-")
    assert set(graph(tmp_path, ALLOCATION, environ=INSIDE).environment({"PATH": "/bin"})) == {"PYTHONPATH"}


@pytest.mark.parametrize(
    ("widths", "nodes", "rounds"),
    [([], 4, 0), ([1], 4, 1), ([1] * 8, 4, 2), ([4, 2, 1, 1], 4, 2), ([2, 2, 2], 4, 2), ([3, 3, 1, 1], 4, 2), ([4] * 3 + [1] * 5, 4, 5)],
)
def test_rounds(widths: list[int], nodes: int, rounds: int) -> None:
    assert num_rounds(widths, nodes) == rounds


def test_a_submission(tmp_path: Path) -> None:
    study = graph(tmp_path, None, SITE + "gpus_per_node: 8\nsetup: [module load gcc]\n", limits={"walltime": "10m"}).study
    job = plan_submission(study, study.runs, Width(), "0badcafe", ["--config", "retry=failed"])
    assert (job.name, job.size.nodes, job.size.gpus, job.size.memory_mb, job.size.whole_nodes) == ("slipway-small-0badcafe", 2, 8, 0, True)
    assert job.argv[1:10] == (
        *("-P", "-m", "snakemake", "--configfile", str(study.path.absolute())),
        *("--config", "retry=failed", "--resources", "nodes=2"),
    )
    assert job.setup == ("module load gcc",)
    assert job.size.minutes == 65  # 4 rounds of two small runs or one large, and 2 x 4 runs: 2 + 4 of 10 m 15 s, and the end
    four = plan_submission(study, study.runs, Width(nodes=4), "0badcafe")
    assert (four.size.nodes, "nodes=4" in four.argv, four.size.minutes) == (4, True, 34)


def test_a_submission_takes_what_the_site_allows_and_time_to_build(tmp_path: Path) -> None:
    study = graph(tmp_path, None, SITE + "walltime: 30m\n", limits={"walltime": "10m"}).study
    assert minutes_for(study, study.runs, 2) == 30
    one = study.runs[:1]
    assert minutes_for(study, one, 2, built=True) == 14
    assert minutes_for(study, one, 2, built=False) == 29


def test_a_submission_whose_repeats_are_spread(tmp_path: Path) -> None:
    """Two repeats, the largest run on 2 nodes: two sets of 2 nodes, side by side, in the time of one set."""
    study = graph(tmp_path, None, base={"repeats": 2}, limits={"walltime": "10m"}).study
    job = plan_submission(study, study.runs, Width(spread=True), "0badcafe")
    assert (job.size.nodes, job.environ, "nodes=4" in job.argv) == (4, (("SLIPWAY_NODE_SETS", "2"),), True)
    assert "export SLIPWAY_NODE_SETS=2" in batch_script(job).splitlines()
    plain = plan_submission(study, study.runs, Width(), "0badcafe")
    assert (plain.size.nodes, plain.environ) == (2, ())
    assert job.size.minutes < plain.size.minutes


@pytest.mark.parametrize(
    ("repeats", "width", "words"),
    [
        (2, Width(nodes=1), "--nodes 1: a run of the study needs 2 nodes"),
        (1, Width(spread=True), "one repeat"),
        (3, Width(nodes=2, spread=True), "multiples of 2 from 4 on, 6 for all 3 repeats"),
        (3, Width(nodes=5, spread=True), "multiples of 2"),
    ],
)
def test_nodes_that_do_not_do_are_refused(tmp_path: Path, repeats: int, width: Width, words: str) -> None:
    study = graph(tmp_path, None, base={"repeats": repeats}).study
    with pytest.raises(ConfigError, match=words):
        plan_submission(study, study.runs, width, "0badcafe")


@pytest.mark.parametrize(("cells", "repeats", "sets"), [(1, 3, 3), (4, 3, 3), (5, 2, 2), (7, 4, 4), (3, 3, 5)])
def test_repeats_take_sets_of_their_own(cells: int, repeats: int, sets: int) -> None:
    names = [f"cell{number}" for number in range(cells)]
    runs = [name for repeat in range(repeats) for name in random.Random(repeat).sample(names, cells)]
    taken: dict[str, list[int]] = {}
    for cell, found in zip(runs, node_sets(runs, sets), strict=True):
        taken.setdefault(cell, []).append(found)
    assert all(len(set(found)) == repeats and set(found) <= set(range(sets)) for found in taken.values())


def test_fewer_sets_than_repeats_are_used_evenly() -> None:
    assert node_sets(["a"] * 5, 2) == [0, 1, 0, 1, 0]
    assert node_sets(["a", "b"] * 2, 2) == [0, 1, 1, 0]
    assert node_sets(["a", "b", "c"], 1) == [0, 0, 0]


@pytest.mark.parametrize(
    "more", [{}, {"cores": 4, "memory_mb": 0, "gpus": 2, "whole_nodes": False, "queue": "q", "directives": ("-l a b", "x")}]
)
def test_a_size_goes_through_resources(more: dict[str, Any]) -> None:
    size = JobSize(nodes=2, minutes=5, **more)
    assert size_of({name: value for name, value in resources_of(size).items() if value is not None}) == size
    with pytest.raises(ValueError, match="runtime must be a whole number, found '5h'"):
        size_of({"runtime": "5h"})
