import multiprocessing
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from base.errors import AllocationError
from base.publish import remove_tree
from cluster import processes
from cluster.gpus.listing import Gpu
from cluster.runtime import runtime_directory
from cluster.schedulers import holder_alive, is_job_of, local
from cluster.types import AllocationRequest, Holder
from tests.cluster import builders

GPUS = tuple(Gpu(number, f"GPU-{number}", "P100") for number in range(4))
FLAT = {number: (0, number) for number in range(16)}


def request(nodes: int = 2, each: int = 1, largest: int | None = None, device: str | None = "cpu") -> AllocationRequest:
    return AllocationRequest(nodes=nodes, gpus_per_node=each, largest_nodes=largest or nodes, device=device)


def plan(wanted: AllocationRequest, cores: Any = range(8), gpus: Any = (), topology: Any = None) -> Any:
    return local.plan_allocation(wanted, tuple(cores), FLAT if topology is None else topology, gpus, ("host", 7))


@pytest.mark.parametrize(
    ("wanted", "cores", "sets", "oversubscribed"),
    [
        pytest.param(request(4), range(8), [(0, 1), (2, 3), (4, 5), (6, 7)], False, id="equal and disjoint"),
        pytest.param(request(1, largest=4), range(8), [(0, 1)], False, id="as small as those of the largest cell"),
        pytest.param(request(3), range(8), [(0, 1), (2, 3), (4, 5)], False, id="what does not divide is unused"),
        pytest.param(request(3), (4, 9), [(4,), (9,), (4,)], True, id="fewer cores than nodes"),
        pytest.param(request(2, largest=3), (4, 9), [(4,), (9,)], False, id="the node that would share stays idle"),
        pytest.param(request(2, each=5), range(8), [(0, 1, 2, 3), (4, 5, 6, 7)], True, id="more processes than cores"),
        pytest.param(request(2, each=4), range(8), [(0, 1, 2, 3), (4, 5, 6, 7)], False, id="as many processes as cores"),
    ],
)
def test_cores_of_nodes(wanted: AllocationRequest, cores: Any, sets: list[tuple[int, ...]], oversubscribed: bool) -> None:
    allocation = plan(wanted, cores)
    assert [(node.name, node.cores) for node in allocation.nodes] == [(f"local-{index}", own) for index, own in enumerate(sets)]
    assert (allocation.oversubscribed, allocation.job_id) == (oversubscribed, "7")


def test_hardware_threads_of_a_core_stay_together() -> None:
    siblings = {number: (0, number % 4) for number in range(8)}  # 0 and 4 are one core
    assert [node.cores for node in plan(request(4), topology=siblings).nodes] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_gpus_are_split_and_never_shared() -> None:
    allocation = plan(request(2, each=2, device=None), gpus=GPUS)
    assert allocation.device == "cuda"
    assert [node.gpus for node in allocation.nodes] == [("GPU-0", "GPU-1"), ("GPU-2", "GPU-3")]
    assert allocation.nodes[0].gpu_models == ("P100", "P100")
    assert not allocation.oversubscribed


@pytest.mark.parametrize(("each", "gpus", "words"), [(3, GPUS, "2 nodes x 3 GPUs"), (1, (), "no GPU")])
def test_missing_gpus_are_an_error(each: int, gpus: Any, words: str) -> None:
    with pytest.raises(AllocationError, match=words):
        plan(request(2, each=each, device="cuda"), gpus=gpus)


def test_without_a_gpu_and_without_a_word_it_is_the_cpu() -> None:
    assert plan(request(device=None)).device == "cpu"


@pytest.mark.parametrize("job", [{"SLURM_JOB_ID": "1"}, {"LSB_JOBID": "1"}, {"PBS_JOBID": "1"}, {"JOB_ID": "1", "SGE_ROOT": "/"}])
def test_it_is_not_inside_another_scheduler_s_job(job: dict[str, str]) -> None:
    assert not is_job_of("local", job)
    assert is_job_of("local", {"PATH": "/bin", "JOB_ID": "1"})


def test_this_machine_can_be_allocated() -> None:
    allocation = local.allocate(request(1), os.environ, 42)
    assert set(allocation.head.cores) <= os.sched_getaffinity(0)
    assert allocation.job_id == "42"


def holder(**changes: Any) -> Holder:
    state = processes.state_of(os.getpid())
    assert state
    own = {"host": os.uname().nodename, "pid": os.getpid(), "pid_start": state.start, "boot_id": processes.boot_id()}
    return replace(builders.holder("local"), **{**own, "pid_namespace": processes.pid_namespace(), **changes})


@pytest.mark.parametrize(
    ("changes", "alive"),
    [
        ({}, True),
        ({"pid_start": 1}, False),
        ({"pid": 2**22 + 1}, False),
        ({"boot_id": "another boot"}, False),
        ({"boot_id": "another boot", "host": "another-host"}, None),
        ({"boot_id": "another boot", "machine": processes.machine()}, False),
        ({"boot_id": "another boot", "machine": "another machine"}, None),
        ({"pid_namespace": "pid:[1]"}, None),
    ],
)
def test_whether_a_holder_lives(changes: dict[str, Any], alive: bool | None) -> None:
    assert holder_alive(holder(**changes)) is alive


@pytest.mark.parametrize(
    ("content", "known"), [("0123456789abcdef" * 2 + "\n", True), ("uninitialized\n", False), ("", False), (None, False)]
)
def test_a_machine_is_known_by_its_id(tmp_path: Path, content: str | None, known: bool) -> None:
    path = tmp_path / "machine-id"
    if content is not None:
        path.write_text(content)
    found = processes.machine(path)
    assert (found is not None) is known
    assert found is None or content is None or found not in content


def test_the_lock_s_directory_is_ours_alone(tmp_path: Path) -> None:
    pattern = str(tmp_path / "slipway-{uid}")
    path = runtime_directory(pattern)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert runtime_directory(pattern) == path
    path.chmod(0o777)
    with pytest.raises(AllocationError, match=rf"of uid {os.geteuid()}, gid \d+, mode 0777\) must be a directory of yours with mode 0700"):
        runtime_directory(pattern)
    remove_tree(path)
    path.symlink_to(tmp_path)
    with pytest.raises(AllocationError, match="0700"):
        runtime_directory(pattern)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another's")
def test_a_name_that_somebody_else_took_blocks_nobody_who_has_another_place(tmp_path: Path) -> None:
    taken, free = places = [tmp_path / place / f"slipway-{os.geteuid()}" for place in ("first", "second")]
    for place in places:
        place.parent.mkdir()
        place.parent.chmod(0o1777)
    patterns = [str(place) for place in places]
    taken.mkdir()
    os.chown(taken, 65534, 65534)
    with pytest.raises(AllocationError, match=f"{taken} is another user's"):
        runtime_directory(patterns[0])
    assert runtime_directory(*patterns) == free
    assert stat.S_IMODE(free.stat().st_mode) == 0o700
    taken.rmdir()  # whoever took the name may give it back: all runs go on with the one that is there
    assert runtime_directory(*patterns) == free
    remove_tree(free)
    assert runtime_directory(*patterns) == taken


@pytest.mark.processes
def test_runs_that_begin_at_one_moment_agree_on_their_directory(tmp_path: Path) -> None:
    pattern = str(tmp_path / "slipway-{uid}")
    with multiprocessing.get_context("fork").Pool(8) as pool:
        for _trial in range(30):
            (found,) = set(pool.map(runtime_directory, [pattern] * 8, chunksize=1))
            found.rmdir()


def test_a_place_without_the_sticky_bit_is_passed_over_by_all_runs_alike(tmp_path: Path) -> None:
    patterns = [str(tmp_path / place / "slipway-{uid}") for place in ("open", "sticky")]
    for pattern, mode in zip(patterns, (0o777, 0o1777), strict=True):
        Path(pattern).parent.mkdir()
        Path(pattern).parent.chmod(mode)
    assert runtime_directory(*patterns).parent == tmp_path / "sticky"
    assert list((tmp_path / "open").iterdir()) == []


def test_a_directory_that_everybody_can_exchange_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(AllocationError, match="no sticky bit"):
        runtime_directory(str(tmp_path / "slipway-{uid}"))
