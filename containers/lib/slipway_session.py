"""Run the program of a session where its GPUs and its data are: a notebook, a shell, a server with ports, a script.

    python3 slipway_session.py KIND [WORD]...

`SLIPWAY_SESSION` is a JSON object: `directory`, which only the user can enter, with the file `token` in it; `ports`; `network`: `own` or
`shared`. All that is reached from outside is a unix socket in that directory. A program that can only listen on ports gets a network of its
own, which has nothing but the loopback, and a proxy before each port that asks for the token; any user of a node reads its 127.0.0.1.

Runs on the image's own interpreter: Python 3.6, standard library only.
"""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import Any, Dict, List, Optional

import slipway_proxy
import slipway_terminal

BEAT_S = 15.0
STOP_S = 3.0
"""The time between TERM and KILL: less than the node program waits."""
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
NOT_THERE, NO_NETWORK = 61, 62
"""Exit codes: the program is not here; it can have no network of its own. 44 and 45 mean something else in a run."""


def main(words: List[str]) -> int:
    """Run the program, and return its exit code; 0 where it was told to end."""
    kind, command = words[0], words[1:]
    if kind == "beside" and os.environ.get("SLIPWAY_NODE_RANK") == "0":
        return 0  # the first node has the program itself
    settings = json.loads(os.environ.pop("SLIPWAY_SESSION"))
    ports = settings["ports"]
    if ports and settings["network"] == "own" and not is_isolated():
        why = take_own_network()
        if why is not None:
            say(
                "the program listens on 127.0.0.1, which any user of this node can read, and it can have no network of its own here: "
                + why + ". On a node that is yours alone: --allow-shared"
            )  # fmt: skip
            return NO_NETWORK
    work = os.path.join(os.environ["SLIPWAY_OUT"], "work")
    os.makedirs(work, exist_ok=True)
    os.chdir(work)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    if kind != "beside":
        threading.Thread(target=write_beats, daemon=True).start()
    code = slipway_terminal.serve(settings["directory"], stopping) if kind == "shell" else run_program(kind, command, settings, stopping)
    if kind != "beside" and (code == 0 or stopping.is_set()):
        write_event(event="run_stop")
    return 0 if stopping.is_set() else code


def run_program(kind: str, command: List[str], settings: Dict[str, Any], stopping: threading.Event) -> int:
    """Run a program until it ends, or is told to. Return its exit code."""
    environ = dict(os.environ)
    if kind == "notebook":
        found = notebook_command(settings["directory"], environ)
        command = [] if found is None else found + command
    elif kind == "tensorboard":
        found = tensorboard_command(settings["ports"][0])
        command = [] if found is None else found + command
    if not command:
        say(
            kind + " is not here: the image, or the interpreter of --python, or PATH must have it "
            "(pip install " + ("jupyterlab" if kind == "notebook" else kind) + "); looked at " + sys.executable
        )  # fmt: skip
        return NOT_THERE
    for port in settings["ports"]:
        slipway_proxy.serve(settings["directory"], port)
    try:
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)
    except OSError as error:
        say("%s cannot be started: %s" % (command[0], error.strerror))
        return NOT_THERE
    while process.poll() is None and not stopping.wait(0.2):
        pass
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def notebook_command(directory: str, environ: Dict[str, str]) -> Optional[List[str]]:
    """Return the command of JupyterLab, or of a Jupyter server without it, on a socket. Its kernels talk by sockets too, since what they
    print is not encrypted on a port.
    """
    for module, program in (("jupyterlab", "jupyter-lab"), ("jupyter_server", "jupyter-server")):
        there = shutil.which(program)
        start = [sys.executable, "-m", module] if find_spec(module) is not None else [there] if there is not None else None
        if start is not None:
            break
    else:
        return None
    runtime = os.path.join(directory, "j")
    os.makedirs(runtime, 0o700, exist_ok=True)
    environ.update(JUPYTER_RUNTIME_DIR=runtime, JUPYTER_TOKEN_FILE=os.path.join(directory, "token"))
    options = ["--no-browser", "--ServerApp.sock=" + os.path.join(directory, "s.sock"), "--ServerApp.sock_mode=0600"]
    options += ["--ServerApp.root_dir=" + os.getcwd(), "--KernelManager.transport=ipc"]
    return start + options + (["--allow-root"] if os.geteuid() == 0 else [])


def tensorboard_command(port: int) -> Optional[List[str]]:
    """Return the command of TensorBoard behind a proxy of ours, since it knows neither tokens nor sockets."""
    there = shutil.which("tensorboard")
    start = [sys.executable, "-m", "tensorboard.main"] if has_module("tensorboard") else [there] if there is not None else None
    return None if start is None else start + ["--host=127.0.0.1", "--port=%d" % port]


def has_module(name: str) -> bool:
    """Return True if it can be imported as a package of its own: a directory of that name is none."""
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


# -- a network of its own


def is_isolated() -> bool:
    """Return True if the engine has put the container into another network namespace than the node's, which the node program names."""
    node = os.environ.get("SLIPWAY_NODE_NETWORK")
    return node is not None and node != os.readlink("/proc/self/ns/net")


def take_own_network() -> Optional[str]:
    """Put this process and its children into a network of their own, and return None; or return why that is not possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent, uid, gid = os.getppid(), os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0:
        try:
            write("/proc/self/setgroups", "deny")
            write("/proc/self/uid_map", "%d %d 1" % (uid, uid))
            write("/proc/self/gid_map", "%d %d 1" % (gid, gid))
        except OSError as error:
            return "its user namespace gets no users (%s)" % error.strerror
    elif uid != 0 or libc.unshare(CLONE_NEWNET) != 0:
        return "user namespaces are not allowed (%s)" % os.strerror(ctypes.get_errno())
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # other credentials have taken it away
    if os.getppid() != parent:
        os._exit(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        asked = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(link, SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(link, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
    return None


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# -- what the node program reads


def write_beats() -> None:
    """Write a line now and then: a session that writes nothing is ended."""
    never = threading.Event()
    while not never.wait(BEAT_S if os.path.exists(events_path()) else 0):
        write_event(event="session")


def write_event(**event: Any) -> None:
    descriptor = os.open(events_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, (json.dumps(event) + "\n").encode())
    finally:
        os.close(descriptor)


def events_path() -> str:
    return os.path.join(os.environ["SLIPWAY_OUT"], "events-0.jsonl")


def say(text: str) -> None:
    sys.stderr.write("slipway session: " + text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
