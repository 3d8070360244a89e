"""Faults: each is done to a running study; the returned function heals, or is None."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable

from cluster import processes
from tests.slurm.campaign.rounds import Round


def scancel(one: Round) -> Callable[[], None] | None:
    if jobs := one.jobs():
        one.cluster.exec("login", ["scancel", one.rng.choice(jobs)])
    return None


def requeue(one: Round) -> Callable[[], None] | None:
    if jobs := one.running():
        one.cluster.exec("login", ["scontrol", "requeue", one.rng.choice(jobs)])
    return None


def walltime(one: Round) -> Callable[[], None] | None:
    if jobs := one.running():
        one.cluster.exec("login", ["scontrol", "update", f"JobId={one.rng.choice(jobs)}", "TimeLimit=1"])
    return None


def _kill(one: Round, words: str, nodes: tuple[str, ...]) -> None:
    pids = [pid for node in nodes for pid in one.pids(node, words)]
    if pids:
        processes.send([one.rng.choice(pids)], signal.SIGKILL)


def slurmstepd(one: Round) -> Callable[[], None] | None:
    _kill(one, "slurmstepd", one.cluster.nodes)
    return None


def supervisor(one: Round) -> Callable[[], None] | None:
    _kill(one, "workflow.run.supervisor", one.cluster.nodes)
    return None


def node_program(one: Round) -> Callable[[], None] | None:
    _kill(one, "workflow.run.node", one.cluster.nodes)
    return None


def snakemake(one: Round) -> Callable[[], None] | None:
    _kill(one, "snakemake", ("login", *one.cluster.nodes))
    return None


def kill_node(one: Round) -> Callable[[], None] | None:
    node = one.lose()
    one.cluster.kill(node)

    def heal() -> None:
        one.cluster.heal(node)
        one.disk.mount(node)

    return heal


def cut_node(one: Round) -> Callable[[], None] | None:
    node = one.lose()
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
    directory = one.results / "runs"
    if not directory.is_dir():
        return None
    subprocess.run(["chattr", "-R", "+i", str(directory)], check=False, capture_output=True)
    return lambda: subprocess.run(["chattr", "-R", "-i", str(directory)], check=False, capture_output=True) and None


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


FAULTS: dict[str, tuple[Callable[[Round], Callable[[], None] | None], float]] = {
    "scancel": (scancel, 0),
    "requeue": (requeue, 0),
    "walltime": (walltime, 0),
    "slurmstepd": (slurmstepd, 0),
    "supervisor": (supervisor, 0),
    "node program": (node_program, 0),
    "snakemake": (snakemake, 0),
    "kill node": (kill_node, 15),
    "cut node": (cut_node, 15),
    "slurmctld silent": (silent_controller, 60),
    "slurmctld restart": (controller_restart, 5),
    "storage full": (storage_full, 10),
    "storage refuses": (storage_refuses, 10),
}
"""Name -> what to do, and for how long it lasts."""
