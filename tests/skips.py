"""Where all that tests need is installed, a test is skipped for a reason in this list only. A run names every other reason at its end;
with STRICT_SKIPS=true it fails then, so that whoever knows the machine can ask for it."""

import os
import re
from typing import Any, Final

import pytest

from containers.frameworks import framework_folders
from containers.frameworks.own_python import BESIDE

ALLOWED: Final = (
    # what an engine does not have
    "tests/workflow/run is about bare",
    "tests/extras/session is about bare",
    "has no containers that outlive a job",
    "mounts nothing",
    "shows what was granted and nothing else",
    "enroot is not here: tests/runtimes/build-enroot.sh",
    "apptainer is not here: tests/runtimes/get-apptainer.sh",
    "OpenPBS is not here, and no package registry has it: tests/runtimes/build-openpbs.sh",
    "OpenLava is not here, and no package registry has it: tests/runtimes/build-openlava.sh",
    "pyxis is not here: tests/runtimes/build-pyxis.sh",
    "is a step of a job of Slurm: tests/slurm/test_pyxis.py",
    # what a machine does not have
    "no sshd in namespaces here: root, openssh-server, iproute2",
    "tcsh is not here",
    "needs root, to become another user",
    "there is no GPU here (nvidia-smi is not on PATH)",
    "fanotify with permissions: Operation not permitted",
    "this file system keeps its pages",
    "only of a disk the kernel tells what memory holds",
    "PyTorch is not installed",
    "chattr does not work here",
    "libfaketime is not here: apt-get install faketime",
    # what is made by hand
    "TensorBoard is not installed here: pip install tensorboard",
    "JupyterLab is not installed here: SLIPWAY_SESSION_TOOLS names an environment that has it",
    "MLflow is not installed here: pip install mlflow-skinny",
    "Weights & Biases is not installed here: pip install wandb",
    "MLPerf's logging is not installed here: pip install mlperf-logging",
    "Extra-P is not installed here: pip install extrap",
    *(f"framework {name} is not installed here: make framework NAME={name}" for name in (*framework_folders(), *BESIDE)),
    "images take minutes to make: `python -m tests.images pytorch`",
    *(f"images take minutes to make: `python -m tests.images pytorch {name}`" for name in framework_folders()),
    "images take minutes to make: `python -m tests.images pytorch jax tensorflow keras`",
)


class Skips:
    """Of the process that starts the workers; `strict`: an exit code of 1 where a reason is not in the list."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.strange: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """One that was skipped, as a whole module may be, has (file, line, reason) as its text."""
        if report.skipped and isinstance(report.longrepr, tuple):
            self.look(report.nodeid, report.longrepr[2])

    pytest_collectreport = pytest_runtest_logreport

    def look(self, test: str, reason: str) -> None:
        """Keep it if it is strange."""
        if re.sub("^Skipped: ", "", reason) not in ALLOWED:
            self.strange.add(f"{test}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """After the last test."""
        if self.strict and self.strange and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say which."""
        for one in sorted(self.strange):
            terminalreporter.write_line(f"skipped, for a reason that tests/skips.py does not allow: {one}")


def pytest_configure(config: pytest.Config) -> None:
    """In the process that starts the workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips(os.environ.get("STRICT_SKIPS") == "true"), "skips")
