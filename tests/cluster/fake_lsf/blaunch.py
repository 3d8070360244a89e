"""blaunch: a program on a host of our job, which is this machine. Its words go to a shell there once more, its exit code is lost, it ends
with its client, and it hears the signals that the client gets.

Run as a file, with the standard library only.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
OF_A_HOST = ("TMPDIR", "HOSTNAME")


def main() -> int:
    """`blaunch -z HOST PROGRAM WORD...`"""
    words = sys.argv[1:]
    if words[:1] != ["-z"] or len(words) < 3:
        sys.stderr.write("Usage: blaunch -z HOST COMMAND\n")
        return 255
    job, host = os.environ.get("LSB_JOBID"), words[1]
    if job is None or host not in os.environ.get("LSB_HOSTS", "").split():
        sys.stderr.write(f"blaunch: host {host} is not one of job {job}\n")
        return 255
    library, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def follow() -> None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    environ = {name: value for name, value in os.environ.items() if name not in OF_A_HOST} | environ_of(
        Path(os.environ["LSF_ENVDIR"]), job, host
    )
    task = subprocess.Popen(["/bin/sh", "-c", "exec " + " ".join(words[2:])], env=environ, start_new_session=True, preexec_fn=follow)  # noqa: PLW1509
    for number in FORWARDED:
        signal.signal(number, lambda number, _: task.send_signal(number))
    task.wait()
    return 0


def environ_of(place: Path, job: str, host: str) -> dict[str, str]:
    """What holds on that host."""
    lines = (place / "jobs" / f"{job}.{host}").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


if __name__ == "__main__":
    sys.exit(main())
