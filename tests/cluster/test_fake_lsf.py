"""The LSF of our tests does what the manual of LSF 10.1 says of what Slipway asks of it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.fake_lsf import HOSTS, FakeLsf

pytestmark = pytest.mark.processes
LIMIT_S = 60.0
FIRST, SECOND = HOSTS
DEAF = """\
#!/usr/bin/env python3
import os, signal, subprocess, sys
who = sys.argv[1] if len(sys.argv) > 1 else "script"
log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
numbers = signal.SIGINT, signal.SIGTERM, signal.SIGUSR2
for number in numbers:
    signal.signal(number, lambda number, _: os.write(log, f"{{who}} {{number}}\\n".encode()))
if who == "script":
    for other in ({second!r}, "apart"):
        start = f"blaunch -z {{other}}" if other != "apart" else "setsid"
        # a blaunch that ends for USR2 takes its program along
        subprocess.Popen(["sh", "-c", f"trap '' USR2; exec {{start}} {{sys.executable}} {{__file__}} {{other}}"])
os.write(log, f"{{who}} ready\\n".encode())
while True:
    signal.pause()
"""


@pytest.fixture
def lsf(request: pytest.FixtureRequest) -> Iterator[FakeLsf]:
    lsf = FakeLsf(**getattr(request, "param", {}))
    yield lsf
    lsf.close()
    assert lsf.left() == []


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def words(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def running(lsf: FakeLsf) -> list[str]:
    """Command lines of its jobs."""
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in lsf.left()]


def unfolded(text: str) -> str:
    return text.replace("\n" + " " * 21, "")


def deaf(lsf: FakeLsf, log: Path) -> str:
    """A job on both hosts that ends for no signal that can be ignored, when all of it is there."""
    job = lsf.submit(DEAF.format(log=str(log), second=SECOND), "-n", "8", "-R", "span[ptile=4]", "-W", "5")
    wait_for(lambda: len(words(log)) == 3)
    return job


def heard(log: Path) -> dict[str, list[str]]:
    """Numbers of signals by who has got them, each once: a program of blaunch hears some of it too."""
    found: dict[str, dict[str, None]] = {}
    for who, what in (line.split() for line in words(log)):
        found.setdefault(who, {})[what] = None
    return {who: list(numbers) for who, numbers in found.items()}


@pytest.mark.parametrize("lsf", [{"interval_s": 1.0}], indirect=True)
def test_bkill_sends_int_term_and_kill_to_all_processes(lsf: FakeLsf, tmp_path: Path) -> None:
    job = deaf(lsf, log := tmp_path / "log")
    assert lsf.run("bkill", job).stdout == f"Job <{job}> is being terminated\n"
    assert lsf.told(job) == "RUN", "until it has ended"
    wait_for(lambda: lsf.told(job) == "EXIT")
    assert heard(log) == dict.fromkeys(("script", SECOND, "apart"), ["ready", "2", "15"])
    assert "Exited by signal 9" in (long := lsf.run("bjobs", "-l", job).stdout)
    assert "TERM_OWNER: job killed by owner" in unfolded(long)
    assert "Signal <KILL> requested by user or administrator" in lsf.run("bhist", "-l", job).stdout
    wait_for(lambda: lsf.left() == [])
    assert "Job has already finished" in lsf.run("bkill", job).stderr


@pytest.mark.parametrize("lsf", [{"grace_s": 0.5, "interval_s": 0.0}], indirect=True)
def test_the_run_limit_sends_usr2_and_later_the_rest(lsf: FakeLsf, tmp_path: Path) -> None:
    job = deaf(lsf, log := tmp_path / "log")
    lsf.tell("limit", job)
    wait_for(lambda: lsf.told(job) == "EXIT")
    assert {who: numbers[:2] for who, numbers in heard(log).items()} == dict.fromkeys(("script", SECOND, "apart"), ["ready", "12"])
    long = lsf.run("bjobs", "-l", job).stdout
    assert " RUNLIMIT                \n 5.0 min\n" in long
    assert "TERM_RUNLIMIT: job killed after reaching LSF run time limit" in unfolded(long)


def test_brequeue_starts_the_same_job_again(lsf: FakeLsf, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f'echo "$LSB_JOBID ${{LSB_RESTART:-first}}" >>{log}\n[ -n "$LSB_RESTART" ] && exit 7\nexec sleep 1000\n'
    job = lsf.submit(script, "-r")
    wait_for(lambda: len(words(log)) == 1)
    assert lsf.run("brequeue", job).stdout == f"Job <{job}> is being requeued\n"
    wait_for(lambda: lsf.told(job) == "EXIT")
    assert words(log) == [f"{job} first", f"{job} Y"]
    assert "Exited with exit code 7" in lsf.run("bjobs", "-l", job).stdout
    assert "Signal <REQUEUE_PEND> requested" in lsf.run("bhist", "-l", job).stdout


def test_blaunch_starts_a_program_of_a_host_and_loses_its_exit_code(lsf: FakeLsf, tmp_path: Path) -> None:
    out, program = tmp_path / "out", tmp_path / "program"
    program.write_text('read line; echo "$line on $HOSTNAME $#"; exit 7')
    script = f"echo word | blaunch -z {SECOND} sh {program} 'a b'\necho $?\nblaunch -z elsewhere true\necho $?\nls -d $TMPDIR\n"
    job = lsf.submit(script, "-n", "8", "-R", "span[ptile=4]", "-o", str(out))
    wait_for(lambda: lsf.told(job) == "DONE")
    assert words(out)[:3] == [f"word on {SECOND} 2", "0", f"blaunch: host elsewhere is not one of job {job}"]
    assert words(out)[3:] == ["255", f"{lsf.place}/tmp/{FIRST}/{job}.tmpdir"]
    assert not (lsf.place / "tmp" / FIRST / f"{job}.tmpdir").exists()


def test_a_program_ends_with_its_blaunch(lsf: FakeLsf, tmp_path: Path) -> None:
    log, program = tmp_path / "log", tmp_path / "program"
    program.write_text(f"trap 'echo told >>{log}; exit' TERM\necho ready >>{log}\nsleep 1000 &\nwait\n")
    for number, expected in (("TERM", ["ready", "told"]), ("KILL", ["ready"])):
        script = f"blaunch -z {FIRST} sh {program} &\nuntil [ -s {log} ]; do sleep 0.05; done\nkill -{number} $!\nwait\n"
        job = lsf.submit(script)
        wait_for(lambda job=job: lsf.told(job) == "DONE")
        wait_for(lambda: not any(str(program) in line for line in running(lsf)))
        assert words(log) == expected
        log.unlink()


@pytest.mark.parametrize("lsf", [{"gpus": 3}], indirect=True)
def test_each_job_has_gpus_of_its_own_on_each_host(lsf: FakeLsf, tmp_path: Path) -> None:
    for name, count in (("a", 2), ("b", 1)):
        out = tmp_path / name
        say = f"for host in {FIRST} {SECOND}; do blaunch -z $host env | grep ^CUDA_VIS >>{out}; done; touch {out}.all; exec sleep 1000\n"
        lsf.submit(say, "-n", "2", "-R", "span[ptile=1]", "-gpu", f"num={count}:mode=shared:j_exclusive=yes")
        wait_for(Path(f"{out}.all").exists)
    assert words(tmp_path / "a") == ["CUDA_VISIBLE_DEVICES=0,1"] * 2
    assert words(tmp_path / "b") == ["CUDA_VISIBLE_DEVICES=2"] * 2


@pytest.mark.parametrize("lsf", [{"gpus": 3, "reserve_per_task": True}], indirect=True)
@pytest.mark.parametrize(("said", "visible"), [("1", "0,1"), ("1/task", "0,1"), ("1/host", "0")])
def test_gpus_are_counted_by_task_where_the_cluster_says_so_and_the_job_does_not(
    lsf: FakeLsf, tmp_path: Path, said: str, visible: str
) -> None:
    out = tmp_path / "out"
    script = f"env | grep ^CUDA >{out}\n"
    job = lsf.submit(script, "-n", "2", "-R", "span[ptile=2]", "-gpu", f"num={said}:mode=shared:j_exclusive=yes")
    wait_for(lambda: lsf.told(job) == "DONE")
    assert words(out) == [f"CUDA_VISIBLE_DEVICES={visible}"]


def test_what_bsub_refuses(lsf: FakeLsf) -> None:
    for words_of, said in (
        (("-q", "nope"), "nope: No such queue."),
        (("-n", "99"), "Too many processors requested."),
        (("-W", "xx"), "xx: Bad RUNLIMIT specification."),
        (("-jsdl", "x"), "illegal option"),
    ):
        done = lsf.run("bsub", *words_of, stdin="true")
        assert (done.returncode, done.stdout, said in done.stderr) == (255, "", True), done
    assert "No unfinished job found" in lsf.run("bjobs", "-noheader", "-o", "jobid").stderr


def test_a_job_waits_for_room_and_leaves_out_hosts(lsf: FakeLsf) -> None:
    first = lsf.submit("#!/bin/sh\n#BSUB -n 4\n#BSUB -x\nexec sleep 1000\n")
    other = lsf.submit("exec sleep 1000", "-n", "1", "-R", f"select[hname!='{SECOND}'] span[ptile=1]")
    assert [lsf.told(job, "stat exec_host") for job in (first, other)] == [f"RUN 4*{FIRST}", "PEND -"]
    assert "PENDING REASONS" in lsf.run("bjobs", "-l", other).stdout
    lsf.run("bkill", first)
    wait_for(lambda: lsf.told(other, "stat exec_host") == f"RUN 1*{FIRST}")


def test_commands_wait_for_a_silent_server(lsf: FakeLsf) -> None:
    job = lsf.submit("exec sleep 1000")
    lsf.silence()
    with pytest.raises(subprocess.TimeoutExpired):
        lsf.run("bjobs", timeout_s=0.5)
    lsf.speak()
    assert lsf.told(job) == "RUN"


def test_a_job_on_a_host_out_of_reach_ends_when_it_is_back(lsf: FakeLsf) -> None:
    job = lsf.submit("exec sleep 1000")
    lsf.tell("unreach", FIRST)
    assert lsf.told(job) == "UNKWN"
    lsf.run("bkill", job)
    assert (lsf.told(job), len(lsf.left())) == ("ZOMBI", 1)
    lsf.tell("reach", FIRST)
    wait_for(lambda: lsf.told(job) == "EXIT")
