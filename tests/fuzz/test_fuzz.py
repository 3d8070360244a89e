"""Whatever a file, an answer or an event holds: a value of its type, or an error of ours that names it. Nothing else, nothing slow.

Some cases of each kind run always, some hundreds in CI, 10,000 (FUZZ_CASES) by `make long`, each within 1 GiB and some seconds."""

import os
from pathlib import Path
from typing import Final

import pytest

from base.calls import call_isolated
from tests.fuzz.kinds import KINDS, cases_of

FEW = 40
SOME = 400
MANY = int(os.environ.get("FUZZ_CASES", "10000"))


NEVER_REFUSED = {
    *(
        "CDI specification",
        "cache lease",
        "cache lock",
        "cache stamp",
        "ended.json",
        "journal",
        "events",
    ),
    *("load of a node", "nvidia-smi at work", "record", "scontrol show node", "nvidia-smi -L"),
    *("kernel files", "scontrol show partition", "squeue"),
}
"""What cannot be read of these is as if it were not there, or a row that says so. Of all others some damage is refused, and undamaged ones
are read first (running.py)."""
REFUSED: Final = 0.6
"""Of the damaged ones of a kind at least: three in four changes are to a value that means something, and most of these break a type."""
REFUSED_OF: Final = {"nvidia-smi apps": 0.3, "nvidia-smi": 0.5, "trace of a profiler": 0.3, "words of a container": 0.4}
"""Where less is: a damaged name of a node, a process or a GPU is a name too, and a damaged exit code is one."""


def test_the_lists_name_kinds() -> None:
    assert set(KINDS) >= NEVER_REFUSED | set(REFUSED_OF)


def check(name: str, directory: Path, seed: int, count: int, timeout_s: float) -> None:
    found = call_isolated(f"{count} cases of {name}", cases_of, name, str(directory), seed, count, timeout_s, timeout_s=timeout_s + 10)
    assert not found["failed"], f"{found['failed']} of {count} cases failed:\n\n" + "\n\n".join(found["failures"])
    assert found["read"] + found["refused"] == count
    if name in NEVER_REFUSED:
        assert found["refused"] == 0, "it is refused now: take it from the list"
        return
    assert found["refused"] >= REFUSED_OF.get(name, REFUSED) * count, f"only {found['refused']} of {count} damaged ones were refused"
    if count >= SOME:
        assert found["read"] >= count // 200, f"only {found['read']} of {count} were read: what can do no harm is refused"


@pytest.mark.processes
@pytest.mark.parametrize("name", KINDS)
def test_no_damage_ends_in_a_traceback(tmp_path: Path, name: str) -> None:
    check(name, tmp_path, 1, FEW, 120)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_hundreds_of_cases(tmp_path: Path, name: str) -> None:
    check(name, tmp_path, 3, SOME, 600)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_ten_thousand_cases(tmp_path: Path, name: str) -> None:
    check(name, tmp_path, int(os.environ.get("FUZZ_SEED", "2")), MANY, 3600)
