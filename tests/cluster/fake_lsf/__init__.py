"""LSF for tests, after the manual of LSF 10.1 and the answers of OpenLava (tests/captured/lsf): commands on PATH, and an mbatchd that runs
jobs as processes of this machine. What real daemons do on real hosts, tests/schedulers tries with OpenLava."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.fake_lsf import processes

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
COMMANDS = ("bsub", "bjobs", "bhist", "bkill", "brequeue", "bqueues")


class FakeLsf:
    """A cluster of this machine's, with the slots of each of its hosts."""

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="fake-lsf-"))
        (self.place / "jobs").mkdir()
        (self.place / "bin").mkdir()
        (self.place / "config.json").write_text(json.dumps({"hosts": hosts, "queue": "normal", "interval_s": 10.0, "grace_s": 600.0}))
        for name in COMMANDS:
            self._command(name, f'client.py" {name}')
        self._command("blaunch", 'blaunch.py"')
        argv = [sys.executable, "-m", "tests.cluster.fake_lsf.server", str(self.place)]
        self._server = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LSB_", "LSF_"))},
            "PATH": f"{self.place / 'bin'}:{os.environ['PATH']}",
            "LSF_ENVDIR": str(self.place),
        }

    def _command(self, name: str, rest: str) -> None:
        path = self.place / "bin" / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{HERE}/{rest} "$@"\n')
        path.chmod(0o755)

    def run(self, *argv: str, stdin: str = "", timeout_s: float | None = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, env=self.environ, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s)

    def reach_limit(self, job: str) -> None:
        """Let a job reach its run limit."""
        argv = [sys.executable, "-I", "-S", str(HERE / "client.py"), "control", job]
        subprocess.run(argv, env=self.environ, check=True)

    def silence(self) -> None:
        """mbatchd answers nobody; jobs go on."""
        self._server.send_signal(signal.SIGSTOP)

    def speak(self) -> None:
        self._server.send_signal(signal.SIGCONT)

    def left(self) -> list[int]:
        """Processes of any job."""
        return processes.of_cluster(self.place)

    def close(self) -> None:
        """With all that runs."""
        self.speak()
        self._server.terminate()
        self._server.communicate()
        shutil.rmtree(self.place)
