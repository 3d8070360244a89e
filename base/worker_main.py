"""`python -m base.worker_main`: the interpreter of base.worker. Each line of its socket is a call, (umask, module, function, arguments)
as JSON."""

from __future__ import annotations

import importlib
import os
import signal
import socket
from typing import Any

from base.jsonfile import parse_json
from base.limited import answer_of, on_signals
from base.worker import CALLS_FD


def main() -> None:
    """Answer calls until there are no more. While it waits, it ends with who asks and not before: a signal to all of their group is for
    that one to obey."""
    os.chdir("/")
    os.set_inheritable(CALLS_FD, False)
    with socket.socket(fileno=CALLS_FD) as calls, calls.makefile("rb") as lines:
        on_signals(signal.SIG_IGN)
        for line in lines:
            answer = answer_of(_call, (line,))
            on_signals(signal.SIG_IGN)
            calls.sendall(answer)
    os._exit(0)


def _call(line: bytes) -> Any:
    umask, module, name, arguments = parse_json(line, "the call")
    os.umask(umask)
    return getattr(importlib.import_module(module), name)(*arguments)


if __name__ == "__main__":
    main()
