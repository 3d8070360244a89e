"""Any command but blaunch: hand it to mbatchd and print the answer. As LSF's own, it waits for an mbatchd that is away.

Run as a file, with the standard library only: it is started hundreds of times.
"""

import json
import os
import pwd
import socket
import sys
import time
from pathlib import Path

PAUSE_S = 0.2
SAY_EVERY = 25


def connected(place: Path) -> socket.socket:
    """To mbatchd, as soon as there is one."""
    tries = 0
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(place))
        except OSError:
            connection.close()
            if tries % SAY_EVERY == 0:
                sys.stderr.write("batch system daemon not responding ... still trying\n")
            tries += 1
            time.sleep(PAUSE_S)
        else:
            return connection


def main() -> int:
    """The command's name comes first."""
    name, *words = sys.argv[1:]
    where = os.environ.get("LSF_ENVDIR")
    if where is None:
        sys.stderr.write(f"{name}: Failed in an LSF library call: Unable to open file lsf.conf. \n")
        return 255
    request = {"name": name, "words": words, "cwd": str(Path.cwd()), "user": pwd.getpwuid(os.getuid()).pw_name}
    if name == "bsub":
        request |= {"environ": dict(os.environ), "script": sys.stdin.read()}
    with connected(Path(where, "mbatchd")) as connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main())
