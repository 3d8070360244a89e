import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import machine, processes


def test_a_stat_line_is_read_whatever_the_command_is_called() -> None:
    tail = " ".join(str(number) for number in range(4, 53))
    state = processes.parse_stat(f"12 (a) b ( c) S 3 {tail}")
    assert state == processes.ProcessState(pid=12, state="S", parent=3, start=21, cpu=13 + 14, waited=15 + 16, faults=11 + 12)
    with pytest.raises(ValueError, match="not a line"):
        processes.parse_stat("nonsense")


def test_we_live_and_the_past_does_not() -> None:
    state = processes.state_of(os.getpid())
    assert state is not None
    assert state.parent == os.getppid()
    assert processes.is_alive(os.getpid(), state.start)
    assert not processes.is_alive(os.getpid(), state.start - 1)
    assert processes.state_of(2**22 + 1) is None
    assert 0 <= processes.age_s(os.getpid()) < 86400


HIDDEN = """
import os
from cluster import processes
first = processes.state_of(1)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
assert processes.state_of(1) is None
assert processes.is_alive(1, first.start), "it is another user's, so it cannot be looked at"
assert not processes.is_alive(2**22 + 1, 1)
assert 1 not in [state.pid for state in processes.all_processes()]
processes.send([1], 15)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("hidepid", [1, 2])
def test_processes_that_proc_hides_are_passed_over_and_not_taken_for_dead(hidepid: int) -> None:
    if os.geteuid():
        pytest.skip("mounting /proc with hidepid needs root")
    mount = f'mount -t proc -o hidepid={hidepid} proc /proc && "$0" -c "$1"; exit $?'
    argv = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", mount, sys.executable, HIDDEN]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.processes
def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    state = processes.state_of(child.pid)
    assert state is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(child.pid, state.start)
    child.communicate()


def test_descendants_come_parents_first() -> None:
    make = processes.ProcessState
    tree = [make(5, "S", 4, 0, 0), make(3, "S", 2, 0, 0), make(4, "Z", 3, 0, 0), make(9, "S", 1, 0, 0)]
    assert processes.descendants(2, tree) == [3, 4, 5]
    assert processes.descendants(7, tree) == []


TREE = """
import subprocess, sys, time
from base.process import become_subreaper
from cluster import processes
become_subreaper()
code = "import subprocess, time; subprocess.Popen(['sleep', '100'], start_new_session=True); print('up', flush=True); time.sleep(100)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
spared = subprocess.Popen(["sleep", "100"])
assert processes.kill_descendants(10.0, spare=[spared.pid])
import os
assert processes.descendants(os.getpid()) == [spared.pid], processes.descendants(os.getpid())
spared.kill()
"""


@pytest.mark.processes
def test_a_subreaper_kills_the_whole_tree_but_what_it_spares() -> None:
    done = subprocess.run([sys.executable, "-c", TREE], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ORPHAN = """
import os, subprocess, sys
from base.process import dies_with_us
child = subprocess.Popen(["sleep", "100"], preexec_fn=dies_with_us(), stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.readline()
"""


@pytest.mark.processes
def test_a_child_dies_with_a_killed_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    assert parent.stdin
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    import select

    assert select.select([child], [], [], 10)[0], "the child is still there"
    os.close(child)
    parent.stdin.close()
    parent.stdout.close()


@pytest.mark.processes
def test_processes_are_found_by_their_tag() -> None:
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    child = subprocess.Popen(argv, env={"TEST_TAG": "some value"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        child.stdout.readline()  # Popen returns a moment before the kernel shows the new environment
        assert child.pid in processes.tagged("TEST_TAG", lambda value: value == "some value")
        assert processes.tagged("TEST_TAG", lambda value: value == "some") == []
    finally:
        child.communicate(b"\n")


def test_files_of_the_kernel_are_read(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A CPU: fast\n")
    assert machine.cpu_model(info) == "A CPU: fast"
    release = tmp_path / "os-release"
    release.write_text('ID=debian\nPRETTY_NAME="Debian 12"\n')
    assert machine.os_name(release) == "Debian 12"
    assert machine.os_name(tmp_path / "missing") is None
    core = tmp_path / "cpu3" / "topology"
    core.mkdir(parents=True)
    (core / "physical_package_id").write_text("1\n")
    (core / "core_id").write_text("7\n")
    assert machine.read_topology((3, 4), tmp_path) == {3: (1, 7), 4: (0, 4)}


@pytest.mark.parametrize(
    ("line", "name", "content", "expected"),
    [
        ("0::/job", "job/memory.events", "low 0\noom 3\noom_kill 2\n", 2),
        ("4:memory:/job", "memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("0::/job", "job/other", "", None),
    ],
)
def test_kills_for_memory_are_counted_by_either_cgroup(tmp_path: Path, line: str, name: str, content: str, expected: int | None) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text(f"1:name=systemd:/\n{line}\n")
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(content)
    assert machine.oom_kills(membership, tmp_path) == expected
