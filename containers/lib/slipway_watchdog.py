"""Watch over a container as its first process: start the ranks, report how they end, and end all when the node program is gone.

    python3 slipway_watchdog.py DIRECTORY

DIRECTORY holds `plan.json` and the unix socket `control`, on which the node program listens. That hands over a descriptor per process,
where its output goes, sends signals, and is told how each ends. All ends when that connection does, when the beat file has not changed for
`beat_s`, at the `deadline` (of the monotonic clock, which containers share with their host), or by TERM: TERM to every rank, after
`grace_s` KILL to all that descends from here. Whoever else is in this pid namespace ends with its first process.

Runs on the image's own interpreter: Python 3.6, standard library only.
"""

import array
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Tuple, Union

LOOK_S = 1.0
LIST_LIMIT_S = 30.0
KILL_LIMIT_S = 2.0
PR_SET_CHILD_SUBREAPER = 36
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
VICTIM = "500"
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
"""Why a command cannot be started in this image, now or later."""


class Watchdog:
    """The first process of a container, which serves one node program until every rank has ended."""

    def __init__(self, plan: Dict[str, Any], link: socket.socket) -> None:
        self.plan = plan
        self.link: Optional[socket.socket] = link
        self.wakeup = on_signals()
        self.unread = b""
        self.descriptors: List[int] = []
        self.pids: List[int] = []
        self.left: Optional[Dict[int, int]] = None
        """pid -> number of the process, of those that run; None before the start."""
        self.ended = False
        self.kill_at: Optional[float] = None
        self.beat: Optional[float] = None
        self.missed = 0
        self.next_look = time.monotonic()
        self.oom_before = oom_kills()
        self.spared = [pid for pid, _ in descendants()]
        """Whoever descends from us already serves the file system that we are on (enroot's squashfuse)."""

    def run(self) -> int:
        """Return the exit code: 0 if the ranks ended by themselves."""
        self.send(type="up", pid=os.getpid(), gpus=list_gpus() if self.plan["list_gpus"] else None)
        while not self.ended:
            self.wait()
            self.reap()
            self.check_limits()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                kill_descendants(self.spared)
                self.reap()
                self.ended = True
            self.ended = self.ended or (not self.left and (self.left is not None or self.kill_at is not None))
        kill_descendants(self.spared)
        return 0 if self.kill_at is None else 1

    def wait(self) -> None:
        sources = [self.wakeup] + ([self.link] if self.link is not None else [])
        until = min(self.next_look, self.next_look if self.kill_at is None else self.kill_at)
        readable = select.select(sources, [], [], max(0.0, until - time.monotonic()))[0]
        if self.wakeup in readable:
            for number in os.read(self.wakeup, 4096):
                if number in SIGNALS:
                    self.begin_shutdown("got signal %d" % number)
        if self.link is not None and self.link in readable:
            self.read_orders()

    def read_orders(self) -> None:
        """Read the orders of the node program; its end is ours."""
        assert self.link is not None
        try:
            data, ancillary, _, _ = self.link.recvmsg(1 << 16, socket.CMSG_SPACE(256 * 4))
        except OSError:
            data, ancillary = b"", []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                self.descriptors += numbers
        if not data:
            self.link = None
            self.begin_shutdown("the node program is gone")
            return
        lines = (self.unread + data).split(b"\n")
        self.unread = lines.pop()
        for line in lines:
            self.execute_order(json.loads(line.decode()))

    def execute_order(self, order: Dict[str, Any]) -> None:
        """Execute start, signal, or kill, which is the end without grace; of `keep` only the descriptors count that came with it."""
        if order["do"] == "start" and self.kill_at is None:
            self.start()
        elif order["do"] == "kill":
            self.begin_shutdown("ended by the node program", 0.0)
        elif order["do"] == "signal" and self.left and self.pids[order["process"]] in self.left:
            send_group(self.pids[order["process"]], order["number"])

    def send(self, **words: Any) -> None:
        if self.link is not None:
            try:
                self.link.sendall(json.dumps(words).encode() + b"\n")
            except OSError:
                return  # the node program is gone, and the orders that it gave before are still to be read

    def start(self) -> None:
        """Start every rank in a session of its own. One that cannot be started is reported, and ends the others."""
        self.left = {}
        for number, process in enumerate(self.plan["processes"]):
            output = self.descriptors[number]
            try:
                pid = start_process(process, output)
            except (OSError, subprocess.SubprocessError) as error:
                text = "%s: %r cannot be started: %s" % (process["name"], process["argv"][0], error)
                self.send(type="failed", text=text, program=getattr(error, "errno", None) in NOT_THERE)
                self.begin_shutdown("%s cannot be started" % process["name"], 0.0)
                return
            finally:
                os.close(output)
            self.pids.append(pid)
            self.left[pid] = number
        self.send(type="started", pids=self.pids)

    def reap(self) -> None:
        """Report the exits of ranks; collect those of all other children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.left and pid in self.left:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                before, now = self.oom_before, oom_kills()
                killed = before is not None and now is not None and now > before
                self.send(type="ended", process=self.left.pop(pid), code=code, oom=killed)

    def check_limits(self) -> None:
        """Check beat and deadline. A beat is counted by looks, so that neither a clock that is set nor a pause of this machine makes it
        old.
        """
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + LOOK_S
        try:
            beat: Optional[float] = os.stat(self.plan["beat"]).st_mtime
        except OSError:
            beat = self.beat
        self.missed = self.missed + 1 if beat == self.beat else 0
        self.beat = beat
        if self.missed * LOOK_S >= self.plan["beat_s"]:
            self.begin_shutdown("the node program has not shown that it lives for %g s" % self.plan["beat_s"])
        elif self.plan["deadline"] is not None and time.monotonic() >= self.plan["deadline"]:
            self.begin_shutdown("the deadline has passed")

    def begin_shutdown(self, reason: str, grace_s: Optional[float] = None) -> None:
        """Send TERM to all, and KILL when the grace is over. A second reason can only shorten it."""
        kill_at = time.monotonic() + (self.plan["grace_s"] if grace_s is None else grace_s)
        first = self.kill_at is None
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)
        if first:
            self.send(type="ending", text=reason)
            sys.stderr.write("slipway watchdog: %s: ending everything here\n" % reason)
            sys.stderr.flush()
            for pid in self.left or ():
                send_group(pid, signal.SIGTERM)
                send_group(pid, signal.SIGCONT)


def on_signals() -> int:
    """Return a descriptor that carries the numbers of the signals that come; SIGCHLD only wakes."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in SIGNALS + (signal.SIGCHLD,):
        signal.signal(number, lambda _number, _frame: None)
    return reader


def start_process(process: Dict[str, Any], output: int) -> int:
    env = dict(os.environ)
    env.update(process["env"])
    child = subprocess.Popen(
        process["argv"],
        env=env,
        cwd=process["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=offer_as_victim,
    )
    child.returncode = 0  # we wait for it ourselves
    return child.pid


def offer_as_victim() -> None:
    """Let the kernel take a rank and not us, who report it, where memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(VICTIM)
    except OSError:
        return


def send_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except OSError:
        return


def kill_descendants(spared: List[int]) -> None:
    """Kill all that descends from us, whatever session it is in, until nothing is left but those."""
    give_up = time.monotonic() + KILL_LIMIT_S
    while time.monotonic() < give_up:
        found = [(pid, state) for pid, state in descendants() if pid not in spared]
        if not found:
            return
        for pid, _ in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        if all(state == "Z" for _, state in found):
            return
        select.select([], [], [], 0.01)


def descendants() -> List[Tuple[int, str]]:
    """Return (pid, state) of all below us."""
    children: Dict[int, List[Tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append((int(name), fields[0].decode()))
    found: List[Tuple[int, str]] = []
    level = children.get(os.getpid(), [])
    while level:
        found += level
        level = [child for pid, _ in level for child in children.get(pid, [])]
    return found


def oom_kills() -> Optional[int]:
    """Return how many processes the kernel has killed here for want of memory; None where it does not tell."""
    own = ""
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers in ("", "memory"):
                own = path
    for place in ("/sys/fs/cgroup/memory%s/memory.oom_control", "/sys/fs/cgroup%s/memory.events"):
        for path in (own, ""):
            try:
                with open(place % path) as file:
                    return int(dict(line.split()[:2] for line in file)["oom_kill"])
            except (OSError, KeyError, ValueError):
                continue
    return None


def list_gpus() -> Dict[str, Union[int, str]]:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIST_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return {"code": 127, "text": str(error)}
    return {"code": done.returncode, "text": done.stdout.decode(errors="replace")[:65536]}


def adopt_orphans() -> None:
    """Take processes whose parent ends as our children, where no init of this container does."""
    if os.getpid() == 1 or os.getppid() == 1:
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(argv: List[str]) -> int:
    os.chdir(argv[1])
    with open("plan.json") as file:
        plan = json.load(file)
    os.umask(plan["umask"])
    os.makedirs(plan["home"], exist_ok=True)
    adopt_orphans()
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect("control")
    return Watchdog(plan, link).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
