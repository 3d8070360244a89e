from __future__ import annotations

import threading

import pytest

from base.publish import FEW, each


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 1000])
def test_each_is_called_once(count: int) -> None:
    seen: list[int] = []
    each(seen.append, range(count))
    assert sorted(seen) == list(range(count))


def test_few_are_done_here_and_many_at_the_same_time() -> None:
    threads: set[int] = set()
    each(lambda _: threads.add(threading.get_ident()), range(FEW))
    assert threads == {threading.get_ident()}
    meet = threading.Barrier(2)
    each(lambda number: meet.wait(60) if number < 2 else None, range(FEW + 1))


@pytest.mark.parametrize("count", [2, 100])
def test_what_fails_is_raised(count: int) -> None:
    def fail(number: int) -> None:
        if number == 1:
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        each(fail, range(count))
