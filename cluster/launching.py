"""Start the node programs of an allocation: the token goes over standard input, never into an argv or an environment."""

import os
import subprocess
from collections.abc import Mapping

from base.errors import AllocationError
from cluster.types import Launch

STDERR_BYTES = 16384


class Launched:
    """A running launch: `exit_fd` is readable when it has ended, `stderr_fd` when it has said something."""

    def __init__(self, launch: Launch, first_line: bytes, env: Mapping[str, str], held: tuple[int, ...] = ()) -> None:
        """Start a launch. It inherits the descriptors `held`, such as those of locks that last until it has ended."""
        self.launch = launch
        self.last_words = b""
        try:
            self._process = subprocess.Popen(
                launch.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=env,
                pass_fds=held,
                start_new_session=True,
            )
        except OSError as error:
            raise AllocationError(
                f"{launch.argv[0]!r} cannot be started on this host: {error.strerror}; look whether it is on the PATH here"
            ) from error
        self.pid = self._process.pid
        self.exit_fd = os.pidfd_open(self.pid)
        stdin, stderr = self._process.stdin, self._process.stderr
        assert stdin is not None
        assert stderr is not None
        self.stderr_fd = stderr.fileno()
        os.set_blocking(self.stderr_fd, False)
        try:
            stdin.write(first_line)
            stdin.flush()
        except BrokenPipeError:
            return  # it has ended already: its exit and last words tell why

    def read_stderr(self) -> bytes:
        """Read the output since the last call. It is empty when the stream has ended or holds nothing now."""
        try:
            words = os.read(self.stderr_fd, 1 << 16)
        except BlockingIOError:
            return b""
        self.last_words = (self.last_words + words)[-STDERR_BYTES:]
        return words

    def poll(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        """Give the descriptors back; the process must have ended, or is abandoned."""
        for stream in (self._process.stdin, self._process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
        os.close(self.exit_fd)
