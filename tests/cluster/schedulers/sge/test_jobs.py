"""The batch script for Grid Engine, as text and as what bash makes of it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import ConfigError, SlipwayError
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, SHARD, BatchJob, JobSize, Work
from cluster.schedulers.sge import launch_argv
from cluster.schedulers.sge.jobs import EXITS_WITH_A_MEANING, batch_script, qsub_options
from tests.cluster.builders import write_command

SIZE = JobSize(nodes=2, minutes=90, cores=8, memory_mb=0, queue="gpu.q", account="p", constraint="arch=lx", parallel_environment="mpi")
JOB = BatchJob(
    name="slipway-demo-0a1b2c3d",
    size=replace(SIZE, directives=("-l exclusive=true",)),
    output=f"/nfs/with blank/{JOB_ID_PLACEHOLDER}.log",
    directory="/nfs",
    argv=("true",),
)


def test_options() -> None:
    assert qsub_options(JOB) == (
        "-N slipway-demo-0a1b2c3d",
        "-S /bin/bash",
        "-wd /nfs",
        '-o ":/nfs/with blank/$JOB_ID.log"',
        "-j y",
        "-r y",
        "-l h_rt=5400,arch=lx",
        "-q gpu.q",
        "-P p",
        "-pe mpi 16",
        "-V",
        "-notify",
        "-l exclusive=true",
    )


def test_memory_is_counted_per_slot_and_slots_as_the_site_says() -> None:
    size = replace(SIZE, memory_mb=1000, parallel_environment="mpi 3", constraint=None)
    options = qsub_options(replace(JOB, size=size))
    assert "-l h_rt=5400,h_vmem=334M" in options
    assert "-pe mpi 6" in options


def test_nodes_that_failed_are_left_out() -> None:
    options = qsub_options(replace(JOB, size=replace(SIZE, exclude=("n1", "n2"))))
    assert "-l h_rt=5400,hostname=!(n1|n2),arch=lx" in options
    assert "-w e" in options, "where no others are left the job would wait for ever"


def test_the_job_of_a_shard_takes_one_slot_of_any_node() -> None:
    size = replace(SIZE, parallel_environment="mpi 8", memory_mb=2000, constraint=None)
    job = replace(JOB, work=Work(mark="slipway=demo-00000000", rule=SHARD, wildcards="0"), size=size)
    assert "-l h_rt=5400,h_vmem=2000M" in qsub_options(job)
    assert not any(option.startswith("-pe") for option in qsub_options(job))
    assert '-ac "work=rule_dataset_shard_wildcards_0 slipway=demo-00000000"' in qsub_options(job)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": replace(SIZE, qos="high")}, "no quality of service"),
        ({"size": replace(SIZE, parallel_environment=None)}, "qconf -spl"),
        ({"size": replace(SIZE, parallel_environment="mpi eight")}, "NAME SLOTS"),
        ({"size": replace(SIZE, queue="a\n#$ -q b")}, "end of a line"),
        ({"directory": '/nfs/"x"'}, "storage` in the site file"),
        ({"directory": "/nfs/a,b"}, "it holds ','"),
        ({"output": "/nfs/$USER's/log"}, "'[$]' and"),
        ({"output": "/nfs/a#b/log"}, "it holds '#'"),
        ({"size": replace(SIZE, account='a "b"')}, "quotation mark"),
    ],
)
def test_what_no_line_can_say_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        batch_script(replace(JOB, **change))  # type: ignore[arg-type]


def test_no_exit_code_of_ours_has_a_meaning_for_grid_engine() -> None:
    codes, left = set(), [SlipwayError]
    while left:
        one = left.pop()
        codes.add(one.exit_code)
        left += one.__subclasses__()
    assert len(codes) > 5
    assert codes & set(EXITS_WITH_A_MEANING) == set()


def script_of(*argv: str, setup: tuple[str, ...] = ()) -> str:
    return batch_script(replace(JOB, argv=argv, directory="/", setup=setup))


@pytest.mark.processes
@pytest.mark.parametrize(("code", "seen"), [(0, 0), (7, 7), (99, 1), (100, 1)])
def test_the_scripts_exit_code(code: int, seen: int) -> None:
    assert subprocess.run(["bash"], input=script_of("sh", "-c", f"exit {code}").encode(), check=False, timeout=30).returncode == seen


QUICK: str = 'kill() { builtin kill "$@"; while builtin kill -0 "$child" 2>/dev/null; do :; done; }'
"""In the script: its program has ended as soon as it was told to."""


@contextmanager
def job_of(script: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """The script at work, as a group of its own, which is gone afterwards."""
    job = subprocess.Popen(["bash", "-c", script], env={**os.environ, **environ}, stdout=subprocess.PIPE, start_new_session=True)
    with job:
        try:
            yield job
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.parametrize("setup", [(), (QUICK,)], ids=["slow", "quick"])
def test_the_warning_before_the_end_is_told_to_the_program_as_term(tmp_path: Path, setup: tuple[str, ...]) -> None:
    """USR2 goes to all processes: what the program starts lives on, the program itself is told to end, and its exit code is the job's."""
    program = tmp_path / "program.sh"
    program.write_text("trap 'kill $child; exit 5' TERM\nsleep 60 & child=$!\necho $child\nwhile :; do wait $child; done\n")
    with job_of(script_of("bash", str(program), setup=setup)) as job:
        assert job.stdout is not None
        assert job.stdout.readline().strip().isdigit()
        os.killpg(job.pid, signal.SIGUSR2)
        assert job.wait(30) == 5


@pytest.mark.processes
def test_the_script_waits_for_what_a_killed_program_has_started(tmp_path: Path) -> None:
    """Grid Engine kills all that is there when it ends."""
    program = tmp_path / "program.sh"
    program.write_text("sleep 60 &\necho $!\nkill -9 $$\n")
    with job_of(script_of("setsid", "bash", str(program)), JOB_ID=str(os.getpid()), SGE_TASK_ID="undefined") as job:
        assert job.stdout is not None
        orphan = int(job.stdout.readline())
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(2)
        os.kill(orphan, signal.SIGKILL)
        assert job.wait(30) == 128 + signal.SIGKILL


@pytest.mark.processes
@pytest.mark.parametrize(
    "argv", [("printf", "%s|", "a b", "$HOME", "it's", '"', "\\", "*"), ("sh", "-c", "kill -9 $$"), ("sh", "-c", "exit 4")]
)
def test_qrsh_reads_the_words_again_and_gets_the_same(commands: Path, argv: tuple[str, ...]) -> None:
    """A stand-in that does to its words what the captured `qrsh -inherit` did: joins them, and gives them to a shell."""
    write_command(commands / "qrsh", 'shift 3\nexec sh -c "$*"')
    done = subprocess.run(launch_argv("n1", argv), capture_output=True, text=True, check=False, timeout=30)
    alone = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout == alone.stdout
    assert done.returncode == (alone.returncode if alone.returncode >= 0 else 128 - alone.returncode)
