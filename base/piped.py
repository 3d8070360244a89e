"""A Python of ours as a child that is asked on its standard input and answers on its standard output, by a caller that waits for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Self

from base.packages import rooms_environ


class PipedChild:
    """A child `python -m module words`, with `environ` besides ours; it is gone at the end of its context, however that comes."""

    def __init__(self, module: str, *words: str, stderr: int | None = None, **environ: str) -> None:
        argv = [sys.executable, "-P", "-m", module, *words]
        env = {**os.environ, **rooms_environ(os.environ), **environ}
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout

    def ask(self, request: bytes) -> None:
        """Send a request. Raises BrokenPipeError where the child has ended."""
        self.requests.write(request)
        self.requests.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        for pipe in (self.requests, self.answers, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that nobody will read
                    pipe.close()
        self.process.wait()
