"""A container from its start to its end. Without an engine: the watchdog itself as the client's command. With docker and podman, slow: what
the kernel and the daemons do about memory, names, owners and limits."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from base.errors import AllocationError, ContainerError, SlipwayError
from cluster.processes import is_alive, wait_for_ends
from containers.engines import Engine, Process, apptainer, container_start
from containers.node_facts import limits_here
from containers.spec import ContainerPlan, EnginePlan
from tests.containers.conftest import IN_STORES, Begin
from tests.containers.specs import NAME, WATCHDOG, ended, make_place, output, spec
from tests.minicluster.waiting import wait_until

pytestmark = pytest.mark.processes

Start = Callable[..., Process]


def plain(place: Path, *commands: tuple[str, ...], run: tuple[str, ...] | None = None, start_s: float = 30.0, **changes: Any) -> EnginePlan:
    """Of an engine that makes no container: its client is the watchdog."""
    make_place(place)
    planned = apptainer.plan(spec(place, *commands, **changes), {})
    here = tuple(dataclasses.replace(process, cwd=str(place), argv=process.argv) for process in planned.processes)
    files = (
        (("plan.json", dict(planned.container.files)["plan.json"].replace('"/slipway/out"', f'"{place}"')),) if planned.container else ()
    )
    argv = (sys.executable, "-I", "-S", "-B", str(WATCHDOG), f"{place}/control")
    made = ContainerPlan(run=run or argv, find=(), remove=(), files=files, start_s=start_s)
    return dataclasses.replace(planned, engine=(run or argv)[0], processes=here, container=made)


@pytest.fixture
def start() -> Iterator[Start]:
    plans: list[EnginePlan] = []
    started: list[Process] = []

    def start_one(plan: EnginePlan, index: int = 0) -> Process:
        plans.append(plan)
        started.append(container_start.start(plan, index))
        return started[-1]

    yield start_one
    for process in started:
        process.close()
    for plan in plans:
        container_start.remove(plan)


def smi(place: Path, monkeypatch: pytest.MonkeyPatch, *uuids: str, code: int = 0) -> None:
    """An nvidia-smi that lists these."""
    lines = "".join(f"GPU {index}: Tesla P100 (UUID: {uuid})\\n" for index, uuid in enumerate(uuids))
    program = place / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf '{lines}'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


GRANTED = ("GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222")
OTHER = "GPU-33333333-3333-3333-3333-333333333333"


@pytest.mark.slow
def test_granted_gpus_are_what_is_seen(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, *reversed(GRANTED))
    process = start(plain(tmp_path, ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES"), device="cuda", gpus=GRANTED))
    assert output(process).decode().strip() == ",".join(GRANTED)
    assert ended(process) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seen", "code", "words"),
    [((GRANTED[0], OTHER), 0, OTHER), ((), 0, "2 missing"), ((*GRANTED, OTHER), 0, "1 that were not granted"), ((), 255, "ended with 255")],
)
def test_other_gpus_start_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: tuple[str, ...], code: int, words: str
) -> None:
    smi(tmp_path, monkeypatch, *seen, code=code)
    process = start(plain(tmp_path, ("touch", str(tmp_path / "started")), device="cuda", gpus=GRANTED))
    with pytest.raises(AllocationError, match=words):
        ended(process)
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
def test_a_client_that_hangs_is_given_up_and_named(start: Start, tmp_path: Path) -> None:
    process = start(plain(tmp_path, run=("sleep", "100"), start_s=0.0))
    with pytest.raises(ContainerError, match="did not come up within 0 s: sleep hangs"):
        process.exit_code()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [("echo no such image >&2; exit 125", "ended with 125.*no such image"), ("kill -9 $$", "client of sh that held it was killed")],
)
def test_a_client_that_fails_is_cited(start: Start, tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(ContainerError, match=words):
        ended(start(plain(tmp_path, run=("sh", "-c", script))))


@pytest.mark.slow
@pytest.mark.parametrize("heard", [False, True])
def test_a_first_process_that_ends_when_it_has_just_come_up_is_no_killed_rank(start: Start, tmp_path: Path, heard: bool) -> None:
    """It says that it is up, and is gone: before, or as soon as, it is told to start the ranks."""
    code = (
        "import os, socket; link = socket.socket(socket.AF_UNIX); link.connect('control'); "
        'link.sendall(b\'{"type": "up", "pid": 1, "gpus": null}\\n\'); ' + ("link.recv(1)" if heard else "0")
    )
    argv = (sys.executable, "-c", f"import os; os.chdir({f'{tmp_path}/control'!r}); {code}")
    with pytest.raises(ContainerError, match="its first process ended before the ranks were started"):
        ended(start(plain(tmp_path, ("sleep", "100"), run=argv)))


DEAF = ("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")


@pytest.mark.slow
@pytest.mark.parametrize("command", [("sleep", "100"), DEAF], ids=["hears TERM", "ignores TERM"])
def test_ranks_that_the_watchdog_ends_have_not_ended_by_themselves(start: Start, tmp_path: Path, command: tuple[str, ...]) -> None:
    process = start(plain(tmp_path, command, deadline=time.monotonic() + 2.0))
    with pytest.raises(ContainerError, match="ended.*: the deadline has passed"):
        ended(process)


ENDING, KILLED = '{"type": "ending", "text": "got signal 15"}', '{"type": "ended", "process": 0, "code": -9, "oom": false}'
NO_MEMORY = KILLED.replace("false", "true")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "pause_s"),
    [("exec {}", 0.0), ("exec {}", 0.5), ("{}; sleep 0.5; exit 137", 0.0)],
    ids=["all at once", "rank first", "client last"],
)
@pytest.mark.parametrize(
    ("messages", "oom_kill"),
    [((ENDING, KILLED), False), ((ENDING,), False), ((ENDING, NO_MEMORY), True)],
    ids=["rank killed", "all killed", "memory ran out"],
)
def test_why_a_killed_rank_has_ended_is_kept_in_any_order(
    start: Start, tmp_path: Path, messages: tuple[str, ...], oom_kill: bool, client: str, pause_s: float
) -> None:
    """A stand-in for the watchdog sends these messages, and ends after the pause."""
    (tmp_path / "first.py").write_text(f"""
import os, socket, time
os.chdir({f"{tmp_path}/control"!r})
link = socket.socket(socket.AF_UNIX)
link.connect("control")
link.sendall(b'{{"type": "up", "gpus": null}}\\n')
link.recv(4096)
for message in {('{"type": "started", "pids": [0]}', *messages)}:
    link.sendall(message.encode() + b"\\n")
time.sleep({pause_s})
""")
    process = start(plain(tmp_path, run=("sh", "-c", client.format(f"{sys.executable} {tmp_path}/first.py"))))
    if oom_kill:
        assert (ended(process), process.oom_kill) == (-signal.SIGKILL, True)
    else:
        with pytest.raises(ContainerError, match="was ended: got signal 15"):
            ended(process)


@pytest.mark.slow
def test_memory_that_runs_out_when_a_rank_was_killed_is_not_its_end(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts a victim before it kills it."""
    process = start(plain(tmp_path, ("sleep", "100")))
    wait_until(lambda: process.exit_code() is not None or process.pid != 0, 30.0, "the rank runs")
    counts = iter([False])
    monkeypatch.setattr(container_start.OomCount, "rose", lambda _: next(counts, True))
    os.kill(process.pid, signal.SIGKILL)
    assert (ended(process), process.oom_kill) == (-signal.SIGKILL, False)


@pytest.mark.slow
def test_a_client_that_is_ended_is_not_the_daemon_s_end(start: Start, tmp_path: Path) -> None:
    """The watchdog lives on, as a container does whose client has gone."""
    watchdog = f"{sys.executable} -I -S -B {WATCHDOG} {tmp_path}/control"
    process = start(plain(tmp_path, ("sleep", "100"), run=("sh", "-c", f"echo $$ > {tmp_path}/client; {watchdog} & wait")))
    wait_until(lambda: process.exit_code() is not None or process.pid != 0, 30.0, "the rank runs")
    os.kill(int((tmp_path / "client").read_text()), signal.SIGTERM)
    with pytest.raises(ContainerError, match="the client of sh that held it was ended by SIGTERM"):
        ended(process)


@pytest.mark.slow
def test_a_client_that_is_not_installed_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match=r"'no-such-engine' cannot be started.*PATH"):
        container_start.start(plain(tmp_path, run=("no-such-engine", "run")), 0)


@pytest.mark.slow
def test_ended_before_it_came_up_nothing_is_started(start: Start, tmp_path: Path) -> None:
    process = start(plain(tmp_path, ("touch", str(tmp_path / "started"))))
    process.signal(signal.SIGTERM)
    with pytest.raises(ContainerError, match="was ended before its ranks were started"):
        ended(process)
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
def test_the_pid_is_the_one_of_this_machine(start: Start, tmp_path: Path) -> None:
    process = start(plain(tmp_path, ("sh", "-c", "echo $$; exec sleep 100")))
    inner = int(output(process, lambda said: said.endswith(b"\n")))
    wait_until(lambda: process.exit_code() is not None or process.pid != 0, 30.0, "the pid is told")
    assert process.pid == inner
    process.signal(signal.SIGTERM)
    assert ended(process) == -signal.SIGTERM


@pytest.mark.slow
@IN_STORES
def test_files_belong_to_the_user_and_the_image_is_read_only(begin: Begin, tmp_path: Path) -> None:
    os.chown(tmp_path / "out", 1234, 1234)
    tmp_path.chmod(0o700)
    script = (
        "id -u; id -G; id -un; echo ~; touch mine; touch ~/home /tmp/tmp; for place in /x /etc/x /slipway/data/x /slipway/lib/x; "
        "do touch $place 2>/dev/null && echo wrote $place; done; grep -E 'CapEff|NoNewPrivs' /proc/self/status; "
        "ulimit -n; df -k /dev/shm | tail -1 | awk '{print $2}'; echo $NVIDIA_VISIBLE_DEVICES"
    )
    (process,) = begin(("sh", "-c", script), shm_bytes=300 << 20)
    said = output(process).decode().splitlines()
    assert ended(process) == 0
    assert said[:4] == ["1234", "1234 55 77", "ada", "/tmp/home"]
    assert [line.split() for line in said[4:6]] == [["CapEff:", "0" * 16], ["NoNewPrivs:", "1"]]
    assert said[6:] == [str(dict(limits_here())["nofile"]), str(300 << 10), "void"]
    assert [(path.name, path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "out").iterdir()] == [("mine", 1234, 1234)]


HUNGRY = "import os; food = [os.urandom(1 << 20) for _ in range(1000)]"
SMALL = 96 << 20


@pytest.mark.slow
@IN_STORES
def test_memory_that_runs_out_is_told_from_a_kill(begin: Begin) -> None:
    hungry, other = begin(("python3", "-c", HUNGRY), ("sleep", "100"), memory_bytes=SMALL)
    assert ended(hungry) == -signal.SIGKILL
    assert hungry.oom_kill
    assert other.exit_code() is None
    other.signal(signal.SIGKILL)
    assert ended(other) == -signal.SIGKILL


TAKES_THE_FIRST_ALONG = """
import os
for process, score in (("self", "0"), (os.getppid(), "1000")):
    open(f"/proc/{process}/oom_score_adj", "w").write(score)
food = [os.urandom(1 << 20) for _ in range(1000)]
"""


@pytest.mark.slow
@IN_STORES
def test_a_first_process_that_dies_for_want_of_memory_takes_all_along_as_such(begin: Begin, tmp_path: Path) -> None:
    """As where the cgroup's oom.group is set, or the limit is so small that nobody else is left: nobody inside can tell any more."""
    (tmp_path / "folder" / "program.py").write_text(TAKES_THE_FIRST_ALONG)
    processes = begin(("python3", "{folder}/program.py"), ("sleep", "100"), memory_bytes=SMALL)
    assert [ended(process) for process in processes] == [-signal.SIGKILL, -signal.SIGKILL]
    assert [process.oom_kill for process in processes] == [True, True]


@pytest.mark.slow
@IN_STORES
def test_a_fork_bomb_meets_its_limit(begin: Begin) -> None:
    (process,) = begin(("sh", "-c", "for i in $(seq 200); do sleep 50 & done; echo started all"), pids=50)
    assert b"started all" not in output(process, lambda said: b"ork" in said)
    process.signal(signal.SIGKILL)
    assert ended(process) != 0


@pytest.mark.slow
@pytest.mark.parametrize("acting", ["docker", "podman", "enroot"], indirect=True)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"image": "slipway-test/none:1"},
            "(?i)(no such image|not known|unable to find|does not exist|Invalid argument: slipway-test/none)",
        ),
        ({"python": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_cannot_be_started_is_said_in_the_engine_s_words(begin: Begin, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ContainerError, match=words):
        ended(begin(("true",), **changes)[0])


@pytest.mark.slow
def test_a_source_that_is_missing_is_not_made_by_root(acting: Engine, begin: Begin, tmp_path: Path) -> None:
    if acting.NAME == "bare":
        pytest.skip("mounts nothing")
    (tmp_path / "data").rmdir()
    with pytest.raises(ContainerError, match="data"):
        ended(begin(("true",))[0])
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
@IN_STORES
def test_a_container_that_is_killed_from_outside_ends_all_its_ranks(acting: Engine, begin: Begin) -> None:
    processes = begin(("sleep", "100"), ("sleep", "100"))
    wait_until(lambda: processes[0].exit_code() is not None or processes[0].pid != 0, 60.0, "the pid is told")
    subprocess.run([acting.NAME, "kill", NAME], check=True, capture_output=True, timeout=60)
    assert [ended(process) for process in processes] == [-signal.SIGKILL] * 2


@pytest.mark.slow
@IN_STORES
def test_a_container_that_is_stopped_from_outside_is_named_and_no_rank_is(acting: Engine, begin: Begin) -> None:
    (process,) = begin(("sleep", "100"))
    wait_until(lambda: process.exit_code() is not None or process.pid != 0, 60.0, "the pid is told")
    subprocess.run([acting.NAME, "stop", "--time", "30", NAME], check=True, capture_output=True, timeout=90)
    with pytest.raises(ContainerError, match=rf"container {NAME}: was ended: got signal 15"):
        ended(process)


def test_what_a_killed_client_has_left_in_its_session_goes_with_it(tmp_path: Path) -> None:
    """As the process that serves the file system of an image: in a process group of its own."""
    script = "import os, subprocess; print(subprocess.Popen(['sleep', '600'], process_group=0).pid, flush=True); os.kill(os.getpid(), 9)"
    with (tmp_path / "log").open("w+b") as log:
        process = container_start.spawn([sys.executable, "-c", script], log, dict(os.environ))
        process.wait()
        left = int((tmp_path / "log").read_text())
        assert is_alive(left, None)
        container_start.end(process)
    assert wait_for_ends([left], 30.0)


def test_a_hung_daemon_is_named_and_costs_its_limit_only() -> None:
    with pytest.raises(ContainerError, match=r"`sleep 600` does not answer: it had not ended after 0.2 s"):
        container_start.call(("sleep", "600"), 0.2)


def test_what_does_not_go_away_is_named() -> None:
    with pytest.raises(ContainerError, match="the container 'it' was not removed within .* s: `false` says "):
        container_start.remove_container("it", ("echo", "id"), ("false",), 0.0)
    with pytest.raises(SlipwayError, match="`false` ended with 1"):
        container_start.is_there(("false",))
