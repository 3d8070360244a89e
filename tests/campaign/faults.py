"""Faults: each is done to a running study; the returned function heals, or is None."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cluster import processes
from tests.campaign.rounds import RUNS, Round, look, missing
from tests.minicluster import ClusterError, queue
from tests.minicluster.waiting import wait_until

COMES_S = 120.0
Found = TypeVar("Found")


class TooLateError(Exception):
    """Nobody is left to strike: the study is over, or about to be."""


def _order(one: Round, command: str | None, jobs: Callable[[], list[str]]) -> None:
    queue.order(one.cluster, command, one.rng.choice(_await(one, jobs)))


def cancel(one: Round) -> None:
    _order(one, queue.words_of(one.cluster).cancel, one.jobs)


def requeue(one: Round) -> None:
    _order(one, queue.words_of(one.cluster).requeue, one.running)


def walltime(one: Round) -> None:
    """Where a limit holds for jobs only that have not started, all runs of the round are longer than theirs."""
    if not one.endless:
        _order(one, queue.words_of(one.cluster).shorten, one.running)


def _await(one: Round, find: Callable[[], list[Found]]) -> list[Found]:
    """What it finds, as soon as there is some. Raises TooLateError."""
    found: list[Found] = []

    def there() -> bool:
        found[:] = find()
        return bool(found) or not one.goes_on()

    wait_until(there, COMES_S, "something to strike")
    if not found:
        raise TooLateError
    return found


def _kill(one: Round, program: str, words: str, nodes: tuple[str, ...]) -> None:
    """Kill one process of `program` whose command line holds `words`. A process that such a process has forked is not chosen."""

    def find() -> list[int]:
        found = [pid for node in nodes for pid in one.pids(node, words, program)]
        return [pid for pid in found if (state := processes.state_of(pid)) is not None and state.parent not in found]

    processes.send([one.rng.choice(_await(one, find))], signal.SIGKILL)


def slurmstepd(one: Round) -> None:
    _kill(one, "slurmstepd", "slurmstepd", one.cluster.nodes)


def supervisor(one: Round) -> None:
    _kill(one, "python", "workflow.run.supervisor", one.cluster.nodes)


def node_program(one: Round) -> None:
    _kill(one, "python", "workflow.run.node", one.cluster.nodes)
    one.lost += one.cluster.nodes


def srun(one: Round) -> None:
    """Kill the launcher of the node programs, which Slurm kills then, wherever they run."""
    _kill(one, "srun", "srun --jobid=", one.cluster.nodes)
    one.lost += one.cluster.nodes


def double_start(one: Round) -> None:
    """Type the command once more, in this way or the other. A submission may be refused beside the first start."""
    one.start_beside(one.rng.choice(("run", "submit")))


def snakemake(one: Round) -> None:
    _kill(one, "python", "snakemake", ("login", *one.cluster.nodes))


def _first(one: Round) -> list[str]:
    return one.nodes_with("workflow.run.supervisor")


def _other(one: Round) -> list[str]:
    first = _first(one)
    return [node for node in one.nodes_with("workflow.run.node") if node not in first]


def _kill_node(one: Round, find: Callable[[Round], list[str]]) -> Callable[[], None] | None:
    node = one.rng.choice(_await(one, lambda: find(one)))
    one.cluster.kill(one.lose(node))

    def heal() -> None:
        one.cluster.heal(node)
        one.disk.mount(node)

    return heal


def kill_first_node(one: Round) -> Callable[[], None] | None:
    return _kill_node(one, _first)


def kill_other_node(one: Round) -> Callable[[], None] | None:
    return _kill_node(one, _other)


def cut_node(one: Round) -> Callable[[], None] | None:
    node = one.lose(one.rng.choice(one.cluster.nodes))
    one.cluster.cut(node)
    return lambda: one.cluster.heal(node)


def silent_controller(one: Round) -> Callable[[], None] | None:
    one.cluster.ctld("stop")
    return lambda: one.cluster.ctld("cont")


def controller_restart(one: Round) -> Callable[[], None] | None:
    one.cluster.ctld("kill")
    return lambda: one.cluster.ctld("start")


def storage_refuses(one: Round) -> Callable[[], None] | None:
    """The results' directory takes no new file (its mode is of no use against root, the attribute is)."""
    (directory,) = _await(one, lambda: [path for path in (one.results / "runs",) if path.is_dir()])
    subprocess.run(["chattr", "-R", "+i", str(directory)], check=False, capture_output=True)

    def heal() -> None:
        subprocess.run(["chattr", "-R", "-i", str(directory)], check=False, capture_output=True)

    return heal


def storage_full(one: Round) -> Callable[[], None] | None:
    """Somebody else's file takes all that is free, for every node alike."""
    filler = one.disk.path / "filler"
    with filler.open("wb") as file:
        free = os.statvfs(one.disk.path)
        with contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
        with contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                file.flush()
    return lambda: filler.unlink()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`words`: what records of attempts may say beside `ok`."""

    act: Callable[[Round], Callable[[], None] | None]
    words: tuple[str, ...]
    lasts_s: float = 0.0
    only: str | None = None
    """The scheduler that it is of."""


FAULTS: dict[str, Fault] = {
    "cancel": Fault(act=cancel, words=("cancelled",)),
    "requeue": Fault(act=requeue, words=("preempted", "cancelled")),
    "walltime": Fault(act=walltime, words=("timeout",)),
    "slurmstepd": Fault(act=slurmstepd, words=("cancelled", "node_lost", "killed"), only="slurm"),
    "srun": Fault(act=srun, words=("node_lost", "cancelled"), only="slurm"),
    "double start": Fault(act=double_start, words=()),
    "supervisor": Fault(act=supervisor, words=()),
    "node program": Fault(act=node_program, words=("node_lost",)),
    "snakemake": Fault(act=snakemake, words=("cancelled",)),
    "first node killed": Fault(act=kill_first_node, lasts_s=15, words=("node_lost", "cancelled")),
    "other node killed": Fault(act=kill_other_node, lasts_s=15, words=("node_lost", "cancelled")),
    "node cut off": Fault(act=cut_node, lasts_s=15, words=("node_lost", "cancelled")),
    "server silent": Fault(act=silent_controller, lasts_s=60, words=()),
    "server restart": Fault(act=controller_restart, lasts_s=5, words=()),
    "storage full": Fault(act=storage_full, lasts_s=10, words=("storage",)),
    "storage refuses": Fault(act=storage_refuses, lasts_s=10, words=("storage",)),
}


def faults_of(scheduler: str) -> list[str]:
    """Those that have a meaning there."""
    return [name for name, fault in FAULTS.items() if fault.only in (None, scheduler)]


# One round from its start to the look at what is left.


ROUND_S = 420.0
MAX_S = 8.0
AGAIN = 4
TOO_LATE = "too late"
"""The study was over before its fault: neither right nor wrong."""


def play(one: Round) -> str:
    """One round; an empty text, or what is wrong."""
    fault = FAULTS[one.fault]
    process = one.start()
    done, seconds = one.rng.randrange(RUNS - 1), one.rng.uniform(0.0, MAX_S)
    one.moment = f"{done} runs and {seconds:4.1f} s"
    with contextlib.suppress(ClusterError):
        wait_until(lambda: process.poll() is not None or one.records() >= done, ROUND_S, f"{done} runs")
    try:
        process.wait(seconds)
        return TOO_LATE
    except subprocess.TimeoutExpired:
        try:
            heal = fault.act(one)
        except TooLateError:
            return TOO_LATE
        if heal is not None:
            time.sleep(one.rng.uniform(0.3, 1.0) * fault.lasts_s)
            heal()
    try:
        for _ in range(AGAIN):
            code = process.wait(ROUND_S)
            for other in one.beside:
                other.wait(ROUND_S)
            # A job that ended while no slurmctld ran is started again a minute after the next one began.
            wait_until(lambda: not one.jobs(), 2 * COMES_S, "the queue to become empty")
            if code == 0 and not missing(one):
                break
            process = one.start()
        else:
            return f"not finished after {AGAIN} times: missing {missing(one)}, exit code {process.poll()}"
        return look(one, fault.words)
    except (subprocess.TimeoutExpired, ClusterError) as error:
        for command in (process, *one.beside):
            command.kill()
        for job in one.jobs():
            queue.order(one.cluster, queue.words_of(one.cluster).cancel, job)
        return f"hangs: {error}"
