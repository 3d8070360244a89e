"""Start Python programs in children of a process that has imported torch, which takes a processor 6 s for each process otherwise.

A program runs as in `python program.py` or `python -c text`: as `__main__`, in the environment that it is given, and in its own session.
"""

import atexit
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

SERVER = multiprocessing.get_context("forkserver")
IMPORTED = ("torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", "torch.utils.data", "lmdb", "safetensors.torch")


class Preloaded:
    """What the tests use of subprocess.Popen."""

    def __init__(self, argv: list[str], env: Mapping[str, str], cwd: Path | None = None) -> None:
        """`argv`: sys.executable, and its arguments."""
        SERVER.set_forkserver_preload(list(IMPORTED))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")  # torch reads it while it is imported
            multiprocessing.forkserver.ensure_running()
        self.outputs = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - wait() closes them
        self.texts = ["", ""]
        paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self.outputs]
        self.process = SERVER.Process(target=run_script, args=(argv[1:], dict(env), cwd, paths))
        self.process.start()
        atexit.register(self.end)  # before multiprocessing, which would wait for a process that does not end
        assert self.process.pid is not None
        self.pid = self.process.pid
        self.kill = self.process.kill

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("a preloaded process", timeout or 0)
        for number, file in enumerate(self.outputs):
            if not file.closed:
                file.seek(0)
                self.texts[number] = file.read().decode()
                file.close()
        return self.process.exitcode

    def end(self) -> None:
        if self.process.is_alive():
            os.killpg(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        sys.stderr.write(self.texts[1])  # shown where the test fails
        return self.texts[0], self.texts[1]


def run_script(argv: list[str], env: Mapping[str, str], cwd: Path | None, outputs: list[str]) -> None:
    """Become that program, in the process itself. `argv`: a file or `-c text`, and arguments; `outputs`: standard output and error."""
    os.setsid()
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    if cwd is not None:
        os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [str(Path(argv[0]).parent), *filter(None, env.get("PYTHONPATH", "").split(":")), *installed]
    multiprocessing.set_start_method("fork", force=True)  # as in a process that was not started by this one
    if argv[0] == "-c":
        sys.argv[:] = ["-c", *argv[2:]]
        exec(argv[1], {"__name__": "__main__"})
    else:
        sys.argv[:] = argv
        runpy.run_path(argv[0], run_name="__main__")
