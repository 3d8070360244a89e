"""`python -m cluster.pbs_tasks.launcher --node NAME -- COMMAND...`: run COMMAND on a node of our job, as srun would.

pbs_tmrsh starts it. What it lacks is brought by files in a directory of shared storage that only we can enter: `remote.py` takes our
environment and the first line of our standard input there, and leaves what COMMAND says, which we say. The exit code is COMMAND's. A signal
that ends us is passed on: PBS signals the first node only.
"""

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from base import process, publish
from cluster.pbs_tasks import remote

# Where the commands of PBS are.


CONFIGURATION: Final = "/etc/pbs.conf"


def command(name: str) -> str:
    """Return the path of a command of PBS. In jobs it may be missing on PATH, but then pbs.conf has its directory."""
    if shutil.which(name):
        return name
    try:
        lines = Path(os.environ.get("PBS_CONF_FILE", CONFIGURATION)).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return name
    prefix = next((line.partition("=")[2].strip() for line in lines if line.startswith("PBS_EXEC=")), None)
    return f"{prefix}/bin/{name}" if prefix else name


# Time limits of what starts programs on the nodes of a PBS job.


WORDS_EVERY_S: Final = 2.0
"""The pause between two looks for output of the program on shared storage."""
ORDER_LATE_S: Final = 30.0
"""The delay with which shared storage may show a new file to another host."""
LINE_S: Final = 60.0
"""How long a launch waits for the first line of its standard input, which whoever starts it has at hand."""
FORWARD_S: Final = 4.0
"""How long it may take to signal a program on another node."""
END_S: Final = 12.0
"""How long a launch that was told to end waits for its program: a node program needs 10 s at most."""
OLD_LAUNCH_S: Final = 7 * 86400.0
"""The age at which the remains of a killed launch are deleted."""


LAUNCHES: Final = Path(".slipway", "launches")
"""A folder of the working directory, which all nodes of a job see."""
ENDS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
WAITED_FOR: Final = ENDS | {signal.SIGCHLD}


def launcher_argv(node: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Build the command that runs `argv` on a node of our job."""
    return (sys.executable, "-P", "-m", "cluster.pbs_tasks.launcher", "--node", node, "--", *argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code. If it cannot be started, print the reason and return 1."""
    parser = argparse.ArgumentParser(prog="python -m cluster.pbs_tasks.launcher")
    parser.add_argument("--node", required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args(argv)
    try:
        line = b"" if sys.stdin.isatty() else process.first_line(sys.stdin.fileno(), LINE_S)
    except TimeoutError as error:
        sys.stderr.write(f"nothing is started on {arguments.node}: {error} on the standard input of its launch, which is held open\n")
        return 1
    try:
        with _private_directory() as place:
            order = place / "order"
            descriptor = os.open(order, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            pairs = [f"{name}={value}" for name, value in os.environ.items() if not remote.is_of_a_node(name)]
            with open(descriptor, "wb") as file:
                file.write(b"\0".join([line, *map(os.fsencode, (str(Path.cwd()), arguments.node, *pairs))]))
            return _Program(arguments.node, order, arguments.command).run()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"nothing can be started on {arguments.node}: {where}{error.strerror}\n")
        return 1


@contextlib.contextmanager
def _private_directory() -> Iterator[Path]:
    """Create a directory for one launch, and remove it afterwards, with old ones of killed launches. Raises OSError."""
    parent = Path.cwd() / LAUNCHES
    parent.mkdir(parents=True, exist_ok=True)
    for other in parent.iterdir():
        with contextlib.suppress(OSError):  # another launch has been faster
            if time.time() - other.stat().st_mtime > OLD_LAUNCH_S:
                publish.remove_tree(other)
    place = parent / f"{os.environ.get('PBS_JOBID', 'none').replace('/', '_')}-{secrets.token_hex(8)}"
    place.mkdir(mode=0o700)
    try:
        yield place
    finally:
        with contextlib.suppress(OSError):  # a file that the program has still open, on NFS
            publish.remove_tree(place)


class _Program:
    """The program on its node while it runs. Signals are waited for, and interrupt nothing."""

    def __init__(self, node: str, order: Path, argv: Sequence[str]) -> None:
        self.node, self.order = node, order
        self._said: dict[str, int] = {"out": 0, "words": 0}
        python = (sys.executable, "-I", "-S", remote.__file__)
        self._client = self._start((*python, str(order), f"{ORDER_LATE_S:g}", *argv))
        signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)  # after it: a child inherits what is blocked

    def run(self) -> int:
        told, give_up = 0, float("inf")
        while self._client.poll() is None and time.monotonic() < give_up:
            heard = signal.sigtimedwait(WAITED_FOR, WORDS_EVERY_S)
            if heard is not None and heard.si_signo in ENDS and not told:
                told, give_up = heard.si_signo, time.monotonic() + END_S
                self._forward(told)
            self._relay()
        code = self._client.poll()
        if code is None:
            self._client.kill()
            self._client.wait()
            sys.stderr.write(f"the program on {self.node} does not answer: it ends by itself, since it hears nothing of us\n")
        self._relay()
        return code or (128 + told if told else 0)

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([command("pbs_tmrsh"), self.node, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def _forward(self, number: int) -> None:
        """Send a signal. A program that has not read its start file yet never gets it."""
        with contextlib.suppress(FileNotFoundError):
            self.order.unlink()
        try:
            pid = int(self.order.with_suffix(".pid").read_text())
            sender = self._start(("/bin/kill", f"-{number}", str(pid)))
        except (OSError, ValueError):
            return
        process.wait_or_end(sender, FORWARD_S)

    def _relay(self) -> None:
        for name, stream in (("out", sys.stdout.buffer), ("words", sys.stderr.buffer)):
            self._said[name] += _copied(self.order.with_suffix(f".{name}"), self._said[name], stream)


def _copied(path: Path, start: int, stream: IO[bytes]) -> int:
    """Copy a file from `start` on, and return the number of copied bytes; 0 if the file does not exist yet."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            found = file.read()
        stream.write(found)
        stream.flush()
    except OSError:
        return 0
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
