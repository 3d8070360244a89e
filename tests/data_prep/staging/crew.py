"""Several stagers at once, as processes with a cache each, and this process in the place of the supervisor. None outlives the test."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.reader import die_with_parent
from workflow.run.supervisor.staging import pick_readers

TOKEN = bytes(range(32))
LIMIT_S = 60.0


class Stager:
    """One process of `python -m data_prep.staging`."""

    def __init__(self, index: int, nodes: int, source: Path, cache: Path, options: Sequence[str], wrap: Sequence[str] = ()) -> None:
        argv = [*wrap, sys.executable, "-m", "data_prep.staging", "--source", str(source), "--cache", str(cache), "--patience-s", "0"]
        parent = os.getpid()
        self.process = subprocess.Popen(
            [*argv, "--peer-group", f"{index}/{nodes}", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: die_with_parent(parent),
        )
        self.index = index
        self.said: dict[str, Any] = {}
        self.stderr = b""
        self.tell_bytes(TOKEN.hex().encode() + b"\n")

    def tell_bytes(self, line: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except BrokenPipeError:
            return

    def tell(self, **order: Any) -> None:
        self.tell_bytes(json.dumps(order).encode() + b"\n")

    @property
    def gone(self) -> bool:
        return self.process.poll() is not None

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.said, (self.said, self.stderr.decode())
        return dict(self.said["result"])


class Crew:
    """All of them; what they say is heard in `until`."""

    def __init__(self, stagers: list[Stager]) -> None:
        self.all = stagers
        self._selector = selectors.DefaultSelector()
        self._rest: dict[int, bytes] = {}
        for stager in stagers:
            assert stager.process.stdout is not None
            assert stager.process.stderr is not None
            self._selector.register(stager.process.stdout, selectors.EVENT_READ, (stager, True))
            self._selector.register(stager.process.stderr, selectors.EVENT_READ, (stager, False))

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < end, [(stager.said, stager.stderr.decode()) for stager in self.all]
            if not self._selector.get_map():  # all have hung up: they end
                for stager in self.all:
                    stager.process.wait(LIMIT_S)
                assert done(), [(stager.said, stager.stderr.decode()) for stager in self.all]
                return
            for key, _ in self._selector.select(0.1):
                self._hear(key.data[0], key.fileobj, key.data[1])

    def _hear(self, stager: Stager, stream: Any, is_output: bool) -> None:
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            self._selector.unregister(stream)
        elif not is_output:
            stager.stderr += data
        else:
            *lines, self._rest[stager.index] = (self._rest.get(stager.index, b"") + data).split(b"\n")
            for line in lines:
                stager.said.update(json.loads(line))

    def meet(
        self,
        readers: int | None = None,
        replace: Mapping[int, tuple[str, int, str] | None] | None = None,
        appointed: list[int] | None = None,
    ) -> None:
        """Wait until all listen, and tell them of each other."""
        self.until(lambda: all("listening" in stager.said or stager.index in (replace or {}) for stager in self.all))
        said = [stager.said.get("listening") for stager in self.all]
        peers = [None if one is None else [one["address"], one["port"], one["have"]] for one in said]
        for index, peer in (replace or {}).items():
            peers[index] = None if peer is None else list(peer)
        chosen = appointed if appointed is not None else pick_readers([peer and peer[2] == "all" for peer in peers], readers)
        for stager in self.all:
            stager.tell(peers={"peers": peers, "readers": chosen, "most_readers": readers, "late": False})

    def finish(self, *without: int) -> list[dict[str, Any]]:
        """Wait for the results of all, but those left out, and let them go."""
        wanted = [stager for stager in self.all if stager.index not in without]
        self.until(lambda: all("result" in stager.said or "error" in stager.said for stager in wanted))
        for stager in wanted:
            stager.tell(staged_all=True)
        self.until(lambda: all(stager.gone for stager in wanted))
        for stager in wanted:
            assert stager.process.returncode == 0, stager.stderr.decode()
        return [stager.result for stager in wanted]

    def signal(self, index: int, number: signal.Signals) -> None:
        self.all[index].process.send_signal(number)


@contextmanager
def crew(
    source: Path,
    caches: Sequence[Path],
    *options: str,
    each: Mapping[int, Sequence[str]] | None = None,
    wrap: Mapping[int, Sequence[str]] | None = None,
) -> Iterator[Crew]:
    """A stager per cache; `wrap`: the beginning of the command of some."""
    stagers: list[Stager] = []
    try:
        for index, cache in enumerate(caches):
            stagers.append(Stager(index, len(caches), source, cache, [*options, *(each or {}).get(index, ())], (wrap or {}).get(index, ())))
        yield Crew(stagers)
    finally:
        for stager in stagers:
            stager.process.kill()
            stager.process.wait()
            for stream in (stager.process.stdin, stager.process.stdout, stager.process.stderr):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        continue
