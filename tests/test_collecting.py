"""`make test` says what it does before its first dot."""

from __future__ import annotations

import threading

from tests.conftest import Collecting


def test_whoever_waits_for_the_first_dot_is_told() -> None:
    said: list[str] = []
    again = threading.Event()

    def write(line: str) -> None:
        said.append(line)
        if line.startswith("still collecting"):
            again.set()

    collecting = Collecting(write, every_s=0.01)
    collecting.pytest_xdist_setupnodes()
    assert said[0].startswith("collecting the tests: about ")
    assert again.wait(30)
    collecting.pytest_runtest_logreport()
