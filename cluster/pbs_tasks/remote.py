"""`python -I -S remote.py ORDER LATE_S COMMAND...`: on a node, become COMMAND, with what `launcher.py` has left for it in the file ORDER.

pbs_tmrsh gives a program neither our environment nor our standard input, and its output goes to the job's own file. So the launcher writes
a file that only we can read: the line for the standard input, the directory, the node's name, the environment. It is taken away before
anything is started. Nothing of ours is imported: this is one file, started by its path.
"""

import os
import sys
import time

NODE_NAME = "SLIPWAY_PBS_NODE"
"""Which of the job's nodes this is, as the nodefile calls it."""
OF_A_NODE = ("PBS_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""How variables begin that PBS and its hooks set on each node: those of the first node are not for the others."""
NAMES_OF_A_NODE = frozenset({"TMPDIR", "NCPUS", "PWD", "OLDPWD", "SHLVL", "_"})


def is_of_a_node(name: str) -> bool:
    """Return True if each node has its own value of a variable."""
    return name in NAMES_OF_A_NODE or name.startswith(OF_A_NODE)


def main(argv: list[str]) -> None:
    """Execute COMMAND in this process. Exits with 127 if it cannot be started."""
    order, late_s, command = argv[0], float(argv[1]), argv[2:]
    os.umask(0o077)
    for stream, name in ((1, "out"), (2, "words")):
        os.dup2(os.open(f"{order}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    line, directory, node, *pairs = take(order, late_s).split(b"\0")
    environ = {name: value for name, value in os.environ.items() if is_of_a_node(name)}
    environ.update(os.fsdecode(pair).partition("=")[::2] for pair in pairs)
    environ[NODE_NAME] = os.fsdecode(node)
    reader, writer = os.pipe()
    os.write(writer, line)  # a token: less than a pipe holds
    os.close(writer)
    os.dup2(reader, 0)
    with open(f"{order}.pid", "w") as file:
        file.write(f"{os.getpid()}\n")
    try:
        os.chdir(directory)
        os.execvpe(command[0], command, environ)
    except OSError as error:
        where = f"in {os.fsdecode(directory)!r} on {os.fsdecode(node)}"
        os.write(2, os.fsencode(f"{command[0]!r} cannot be started {where}: {error.strerror}\n"))
        os._exit(127)


def take(order: str, late_s: float) -> bytes:
    """Read and remove the file. Network storage may show it late."""
    give_up = time.monotonic() + late_s
    while True:
        try:
            with open(order, "rb") as file:
                found = file.read()
            os.unlink(order)  # noqa: PTH108 - pathlib would be imported for this alone
        except FileNotFoundError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)
        else:
            return found


if __name__ == "__main__":
    main(sys.argv[1:])
