"""`python -m cluster.exit_file FILE COMMAND`: run a command of bash in a batch job, and leave its exit code in FILE on shared storage.

A scheduler tells late, or not at all, how a job has ended; the file is there as soon as the command is over. A later start of the job takes
away the file of the last one. Schedulers signal all processes of a job, so a signal is not passed on: we wait for what the command makes of
it. Our code lies on network storage, and a job waits for every module: little is imported.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from base.publish import publish

ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STRICT: Final = "set -euo pipefail; "
"""The options with which Snakemake runs the shell command of a rule."""


def main(argv: list[str]) -> int:
    """Run the command and return its exit code, or 128 and the number of the signal that killed it, as a shell does."""
    file, command = Path(argv[0]), argv[1]
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # what the scheduler's script ignores, the command is to ignore too
            signal.signal(number, lambda *_: None)  # not SIG_IGN, which the command would inherit
    file.unlink(missing_ok=True)
    code = subprocess.run(["bash", "-c", STRICT + command], check=False).returncode
    code = 128 - code if code < 0 else code
    try:
        publish(file, f"{code}\n".encode())
    except OSError as error:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"slipway: the exit code {code} cannot be left for Snakemake, which asks the scheduler then: {error}\n")
    return code


def read_exit(file: Path) -> int | None:
    """Read the exit code in a file. Returns None if there is none yet."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
