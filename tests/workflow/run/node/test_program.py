"""How a node program finds its position in the allocation."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from base.errors import NodeLost
from workflow.run.node.program import position_of, read_token


def test_a_node_finds_its_position_by_its_name_and_not_by_the_scheduler_s_number() -> None:
    environ = {"SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}
    assert position_of("SLURMD_NODENAME=n2,n1", environ) == 1
    assert position_of("SLURMD_NODENAME=n1,n2", environ) == 0


@pytest.mark.parametrize("environ", [{}, {"SLURMD_NODENAME": "n"}, {"SLURMD_NODENAME": "n1,n2"}])
def test_a_program_on_another_node_refuses_to_start(environ: dict[str, str]) -> None:
    with pytest.raises(NodeLost, match="the nodes of this run are n1,n2"):
        position_of("SLURMD_NODENAME=n1,n2", environ)


# How a node program gets its token, and ends where nobody hands it one.


ROOT = Path(__file__).parents[4]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):  # the test has closed it
            os.close(end)


def test_the_first_line_is_the_token(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"00ff\n")
    assert read_token(pipe[0], 5.0) == b"\x00\xff"


@pytest.mark.parametrize(("said", "words"), [(b"", "has ended without"), (b"\n", "has ended without"), (b"no token\n", "is no token")])
def test_what_is_no_token_is_said(pipe: tuple[int, int], said: bytes, words: str) -> None:
    os.write(pipe[1], said)
    os.close(pipe[1])
    with pytest.raises(NodeLost, match=words):
        read_token(pipe[0], 5.0)


def test_a_line_that_never_ends_is_not_waited_for(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"00")
    with pytest.raises(NodeLost, match="within 0.1 s"):
        read_token(pipe[0], 0.1)


LIMITED = """
from workflow.run.node import limits, program
limits.TOKEN_S = 0.2
raise SystemExit(program.main(["--supervisor", "127.0.0.1:1", "--node", "0"]))
"""


@pytest.mark.processes
def test_a_node_program_whose_standard_input_is_held_open_ends(pipe: tuple[int, int]) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], stdin=pipe[0], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.returncode == NodeLost.exit_code
    assert "nobody has handed this node program the run's token within 0.2 s" in done.stderr
    assert "Traceback" not in done.stderr
