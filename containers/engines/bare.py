"""Run programs on the node without a container, with the same variables and the same directory contract.

Their environment is an allow list, PYTHONPATH holds the reader's directory alone, and the kernel kills each when the node program goes
away.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from base import errors, process
from containers.engines.docker_podman import inherited, plan_processes
from containers.spec import ContainerSpec, EnginePlan, ProcessPlan

NAME: Final = "bare"
VERSION: Final = ()

# What a program may see of the user's environment besides: where things are.
ALLOWED: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_HOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)


def plan(spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
    """Plan argv and environment of every process, with our interpreter, whatever the image would have, where `spec` names none for here."""
    python = spec.bare_python or sys.executable
    return EnginePlan(engine=NAME, spec=spec, processes=plan_processes(spec, spec.paths, python, inherited(host_env, ALLOWED)))


class BareProcess:
    """A process of ours in a session of its own."""

    def __init__(self, plan: ProcessPlan) -> None:
        self.plan = plan
        self.oom_kill = False  # our own cgroup tells
        self.gpus_seen = None  # what the node program sees is what it sees
        try:
            self._process = subprocess.Popen(
                plan.argv,
                env=dict(plan.env),
                cwd=plan.cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=process.dies_with_us(),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise errors.ContainerError(f"{plan.name}: {plan.argv[0]!r} cannot be started: {error}") from error
        self.pid = self._process.pid
        self.exit_fd = os.pidfd_open(self.pid)
        assert self._process.stdout is not None
        self.output_fd = self._process.stdout.fileno()
        os.set_blocking(self.output_fd, False)

    def exit_code(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to its whole group while it lives; afterwards the group's number may be another's."""
        if self._process.poll() is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return

    def close(self) -> None:
        os.close(self.exit_fd)
        if self._process.stdout is not None:
            self._process.stdout.close()


def start(plan: EnginePlan, index: int) -> BareProcess:
    return BareProcess(plan.processes[index])


def close(plan: EnginePlan) -> None:  # noqa: ARG001 - nothing holds the processes together
    """Let nothing go: nothing holds the processes together."""


def remove(plan: EnginePlan) -> None:  # noqa: ARG001 - nothing was made beside the processes
    """Remove nothing: nothing was made beside the processes."""
