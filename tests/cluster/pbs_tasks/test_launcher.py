"""A program on a node of a PBS job: what reaches it, and what comes back. pbs_tmrsh is a stand-in that does what OpenPBS's was seen to do:
an environment of its own, no standard input, output that nobody here sees, and a program that outlives the client."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from base.process import CODE_ROOT
from cluster.pbs_tasks.launcher import LAUNCHES, launcher_argv, main

pytestmark = pytest.mark.processes

TMRSH = """#!/bin/bash
[ "$1" = nowhere ] && { echo "pbs_tmrsh: host \\"nowhere\\" is not a node in job <7.n0>" >&2; exit 255; }
shift
setsid env -i PATH=/bin:/usr/bin HOME=/ PBS_JOBID=7.n0 PBS_NODENUM=1 TMPDIR=/node/tmp NCPUS=3 "$@" </dev/null >/dev/null 2>&1 &
wait $!
"""
ENVIRON = {"PBS_JOBID": "7.n0", "PBS_NODENUM": "0", "TMPDIR": "/head/tmp", "NCPUS": "5", "OURS": "a \xe9\nb", "PYTHONPATH": str(CODE_ROOT)}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pbs_tmrsh").write_text(TMRSH)
    (tmp_path / "bin" / "pbs_tmrsh").chmod(0o755)
    return {**ENVIRON, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


@pytest.fixture
def started(tmp_path: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program that says its pid and that it was told to end."""
    words = ("bash", "-c", "trap 'echo told >&2; exit 4' TERM; echo $$; while :; do sleep 0.1; done")
    process = subprocess.Popen(
        launcher_argv("n2", words), cwd=tmp_path, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(b"token\n")
    process.stdin.flush()
    yield process
    process.kill()
    process.communicate()


def test_a_program_gets_our_line_environment_and_directory_and_its_words_and_code_come_back(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    words = "read line; echo $line in $PWD; printenv OURS TMPDIR NCPUS PBS_NODENUM SLIPWAY_PBS_NODE; ls .slipway/launches/*"
    words += "; echo 'a  b' >&2; exit 3"
    argv = launcher_argv("n2", ("bash", "-c", words))
    result = subprocess.run(argv, cwd=tmp_path, env=environ, input=b"secret\n", capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (3, b"a  b\n")
    said = result.stdout.decode().splitlines()
    assert said[:7] == [f"secret in {tmp_path}", "a \xe9", "b", "/node/tmp", "3", "1", "n2"]
    assert "order" not in said[7:], "it is taken away before anything is started"
    assert list((tmp_path / LAUNCHES).iterdir()) == []


def test_nobody_else_can_read_what_is_brought(tmp_path: Path, environ: dict[str, str]) -> None:
    words = "cd .slipway/launches/*; stat -c %a . order.*"
    result = subprocess.run(
        launcher_argv("n2", ("sh", "-c", words)), cwd=tmp_path, env=environ, input=b"\n", capture_output=True, check=False
    )
    assert result.stdout.split() == [b"700", b"600", b"600", b"600"], result.stderr


def test_a_signal_is_passed_on_to_the_node(started: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert started.stdout is not None
    assert int(started.stdout.readline()) > 1
    started.send_signal(signal.SIGTERM)
    _, words = started.communicate(timeout=30)
    assert (started.returncode, words) == (4, b"told\n")
    assert list((tmp_path / LAUNCHES).iterdir()) == []


def test_what_cannot_be_started_is_said(tmp_path: Path, environ: dict[str, str]) -> None:
    def launch(node: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**environ, **more}
        return subprocess.run(launcher_argv(node, words), cwd=tmp_path, env=env, input="", capture_output=True, text=True, check=False)

    result = launch("n2", "/no/such/program")
    assert (result.returncode, "No such file or directory" in result.stderr) == (127, True)
    result = launch("nowhere", "true")
    assert (result.returncode, "is not a node in job" in result.stderr) == (255, True)
    result = launch("n2", "true", PATH=str(Path(sys.executable).parent), PBS_CONF_FILE="/none")
    assert (result.returncode, result.stderr) == (1, "nothing can be started on n2: pbs_tmrsh: No such file or directory\n")
    (tmp_path / LAUNCHES).rmdir()
    (tmp_path / LAUNCHES).write_text("")
    result = launch("n2", "true")
    assert (result.returncode, "nothing can be started on n2: " in result.stderr) == (1, True)


def test_a_standard_input_that_is_held_open_ends_the_launch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as held, os.fdopen(writer):
        monkeypatch.setattr(sys, "stdin", held)
        monkeypatch.setattr("cluster.pbs_tasks.launcher.LINE_S", 0.1)
        assert main(["--node", "n1", "--", "true"]) == 1
    assert "nothing is started on n1: no line came within 0.1 s" in capsys.readouterr().err
