"""Specifications for tests: a directory with all that a container gets."""

import importlib.util
import os
import select
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from containers.engines import Process
from containers.spec import ContainerSpec, Paths, ProcessSpec, User

LIB = Path(__file__).parents[2] / "containers" / "lib"
WATCHDOG = LIB / "slipway_watchdog.py"
PATIENCE_S = 240.0
NAME = f"run{os.getpid()}-a1-n0"
"""Two test runs on one machine share its daemons."""
HOST_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/home/u",
    "LC_ALL": "C.UTF-8",
    "NCCL_DEBUG": "INFO",
    "AWS_SECRET_ACCESS_KEY": "canary",
    "PYTHONPATH": "/mine",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "SLURM_JOB_ID": "3",
}
USER = User(uid=1234, name="ada", groups=((1234, "ada"), (55, "gpu"), (77, "cluster")))


def library(name: str) -> ModuleType:
    """A module of containers/lib, made anew."""
    found = importlib.util.spec_from_file_location(name, LIB / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def paths(place: Path) -> Paths:
    return Paths(
        cell=str(place / "cell.json"),
        data=str(place / "data"),
        lib=str(place / "lib"),
        beat=str(place / "beat"),
        out=str(place / "out"),
        resume=str(place / "resume"),
        program=str(place / "folder"),
        control=str(place / "control"),
    )


def make_place(place: Path) -> None:
    """The files of `paths`, as a work directory holds them."""
    for name in ("out", "lib", "data", "folder", "resume"):
        (place / name).mkdir(exist_ok=True, parents=True)
    (place / "cell.json").write_text("{}\n")
    (place / "beat").touch()
    shutil.copy(WATCHDOG, place / "lib")


def spec(place: Path, *commands: tuple[str, ...], **changes: Any) -> ContainerSpec:
    """Pure: a process per command."""
    processes = tuple(
        ProcessSpec(name=f"rank-{index}", ranks=(index,), command=command, env=(("RANK", str(index)),))
        for index, command in enumerate(commands or (("{python}", "{folder}/program.py"),))
    )
    fields: dict[str, Any] = {
        "name": NAME,
        "image": "slipway/pytorch:1",
        "python": "python3",
        "device": "cpu",
        "gpus": (),
        "cores": (),
        "env": (("A", "b"),),
        "user": USER,
    }
    return ContainerSpec(processes=processes, paths=paths(place), **{**fields, **changes})


def ended(process: Process) -> int:
    """Its exit code, waited for as the event loop does."""
    while (code := process.exit_code()) is None:
        assert select.select([process.exit_fd], [], [], PATIENCE_S)[0], "it did not end"
    return code


def output(process: Process, enough: Callable[[bytes], bool] = lambda text: False) -> bytes:
    """What it says, to the end of the stream or until it is enough; the container is kept going meanwhile."""
    said = b""
    while not enough(said):
        ready = select.select([process.output_fd, process.exit_fd], [], [], PATIENCE_S)[0]
        assert ready, f"nothing happens after {said[-200:]!r}"
        if process.output_fd in ready:
            data = os.read(process.output_fd, 1 << 16)
            if not data:
                break
            said += data
        elif process.exit_code() is not None and not select.select([process.output_fd], [], [], 1)[0]:
            break
    return said


def alive(mark: str) -> list[int]:
    """Pids of processes whose command line holds the mark."""
    found = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True, check=False).stdout.split()
    return [int(pid) for pid in found if Path(f"/proc/{pid}/stat").exists() and _state(int(pid)) not in "ZX"]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
