"""Launch ranks by mpirun: Open MPI's own mpirun starts the ranks of a run on all its nodes, without ssh.

    python3 slipway_mpi.py mpirun WORD...    on the head: mpirun, with `agent` as its remote shell
    python3 slipway_mpi.py agent HOST WORD.. started by mpirun for each node: has `node` of that host run the words, which start orted
    python3 slipway_mpi.py node              on each node: runs the words of one agent that knows the key of the run
    python3 slipway_mpi.py rank              started by orted for each rank: hands its place in MPI to `hold`, and ends when that does
    python3 slipway_mpi.py hold WORD...      for each rank: waits for its `rank`, and becomes the program

So every rank is a process of its node program, as with the launcher `ranks`: it is watched and ended by it, and its output and exit code
are known. Hosts are called slipway-node-<i>, and nobody resolves these names: SLIPWAY_MPI_NODES has address and port of each, in order.

Agent and node prove to each other that they know SLIPWAY_MPI_KEY, before a word is run. Python 3.6, standard library only.
"""

import collections
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

HANDSHAKE_S = 5.0
"""The time limit of the words of a new connection."""
MEET_S = 120.0
"""The time limit for the others to connect: a container may come up later than another one."""
PAUSE_S = 0.1
MAX_PENDING = 16
MAX_BYTES = 1 << 20
NONCE_BYTES = 32
HOST = "slipway-node-"
DIRECTORY = "mpi"
AGENT_FILE = ".slipway-mpi-agent.part"
HOLD_FILE = ".slipway-mpi-%s.part"
"""A file in the directory that a rank writes to; hidden files that end in .part are not pushed."""
OF_SCHEDULERS = ("SLURM_", "PBS_", "LSB_", "SGE_", "PMI_", "PMIX_", "OMPI_COMM_")
"""mpirun would start its orteds by the scheduler that they tell of, or take itself for a rank."""
OF_MPI = ("OMPI_", "PMIX_", "ORTE_", "OPAL_")
PR_SET_PDEATHSIG = 1
PRCTL = ctypes.CDLL(None).prctl
"""Looked up before any fork: a thread that ends loads a library of glibc, and a child that is forked meanwhile cannot look up symbols with
glibc 2.31, and dies."""


def main(argv: List[str]) -> int:
    return {"mpirun": mpirun, "agent": agent, "node": node, "rank": rank, "hold": hold}[argv[1]](argv[2:])


def mpirun(words: List[str]) -> int:
    """Run mpirun in place of this process."""
    environment = environment_of_mpi()
    try:
        found = subprocess.run([words[0], "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False)
    except OSError as error:
        fail(
            "%s cannot be started: %s; the launcher mpirun needs Open MPI 4 in the image, or without one on every node"
            % (words[0], error.strerror)
        )
    version = found.stdout.decode(errors="replace").splitlines()[:1]
    if not version or "(Open MPI) 4." not in version[0]:
        fail("the launcher mpirun works with Open MPI 4, and %s says %r" % (words[0], version[0] if version else ""))
    with open(AGENT_FILE, "w") as file:
        file.write('exec %s %s agent "$@"\n' % (shlex.quote(sys.executable), shlex.quote(os.path.abspath(__file__))))
    environment["OMPI_MCA_plm_rsh_agent"] = "sh " + AGENT_FILE
    become([words[0]] + (["--allow-run-as-root"] if os.geteuid() == 0 else []) + words[1:], environment)


def agent(words: List[str]) -> int:
    die_with_parent()
    address = nodes()[int(words[0][len(HOST) :])]
    place = "%s port %d" % address
    connection = until_there(lambda: proved(address, words[1:]), "no node program of MPI answers at %s" % place)
    try:
        return receive(connection, 1)[0]
    except OSError as error:
        fail("the node program of MPI at %s has gone: %s" % (place, error))


def proved(address: Tuple[str, int], words: List[str]) -> socket.socket:
    """Return the connection to a node that has accepted the words, after both sides have proved that they know the key. Raises OSError if
    the node closes the connection, as it does with too many pending connections: then try again."""
    connection = socket.create_connection(address, HANDSHAKE_S)
    try:
        theirs, ours = receive(connection, NONCE_BYTES), os.urandom(NONCE_BYTES)
        body = json.dumps(words).encode()
        connection.sendall(ours + len(body).to_bytes(4, "big") + body + proof(b"agent", theirs, ours, body))
        answer = receive(connection, NONCE_BYTES)
    except OSError:
        connection.close()
        raise
    if not hmac.compare_digest(answer, proof(b"node", theirs, ours, b"")):
        fail("what answers at %s port %d is no node of this run: it does not know the key" % address)
    connection.settimeout(None)
    return connection


def node(_words: List[str]) -> int:
    """Run the words of the first agent; its end ends them. The exit code is theirs; a signal that ended them ends us too."""
    address = nodes()[int(os.environ["SLIPWAY_NODE_RANK"])]
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(MAX_PENDING)
    words, connection = first_agent(listener)
    listener.close()
    parent = os.getpid()
    # The words are those of a remote shell, which mpirun has quoted for it.
    process = subprocess.Popen(
        ["sh", "-c", " ".join((["exec"] if words[0].endswith("orted") else []) + words)],
        env=environment_of_mpi(),
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: die_with_parent(parent),
    )
    watcher = threading.Thread(target=end_with, args=(connection, process))
    watcher.daemon = True
    watcher.start()
    code = process.wait()
    with contextlib.suppress(OSError):  # mpirun may have ended: then nobody asks any more
        connection.sendall(bytes([min(code, 255) if code >= 0 else 128 - code]))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    return code


def first_agent(listener: socket.socket) -> Tuple[List[str], socket.socket]:
    """Wait for words and connection of the first one that knows the key. Others may knock meanwhile: of those that have proved nothing yet
    the oldest goes when there are too many, so that no number of them keeps one of ours out, who tries again.
    """
    found = queue.Queue()  # type: queue.Queue[Tuple[List[str], socket.socket]]
    waiting = collections.deque()  # type: collections.deque[socket.socket]
    lock = threading.Lock()

    def leave(connection: socket.socket) -> bool:
        with lock:
            was_there = connection in waiting
            if was_there:
                waiting.remove(connection)
        return was_there

    def serve_agent(connection: socket.socket) -> None:
        try:
            words, answer = words_of(connection)
            if not leave(connection):
                raise ConnectionError("too many have connected")
            connection.sendall(answer)
            connection.settimeout(None)
            found.put((words, connection))
        except (OSError, ValueError) as error:
            leave(connection)
            connection.close()
            say("one who is none of this run has connected: %s" % error)

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            with lock:
                waiting.append(connection)
                if len(waiting) > MAX_PENDING:
                    with contextlib.suppress(OSError):  # it has gone by itself
                        waiting.popleft().shutdown(socket.SHUT_RDWR)
            threading.Thread(target=serve_agent, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return found.get()


def words_of(connection: socket.socket) -> Tuple[List[str], bytes]:
    """Read the words of an agent that has proved itself, and what proves us to it. Raises OSError, ValueError."""
    until = time.monotonic() + HANDSHAKE_S
    ours = os.urandom(NONCE_BYTES)
    connection.settimeout(HANDSHAKE_S)
    connection.sendall(ours)
    theirs = receive(connection, NONCE_BYTES, until)
    size = int.from_bytes(receive(connection, 4, until), "big")
    if size > MAX_BYTES:
        raise ValueError("it announces %d bytes" % size)
    body = receive(connection, size, until)
    if not hmac.compare_digest(receive(connection, NONCE_BYTES, until), proof(b"agent", ours, theirs, body)):
        raise ValueError("it does not know the key")
    words = json.loads(body.decode())
    return [str(word) for word in words], proof(b"node", ours, theirs, b"")


def end_with(connection: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    """Wait for the agent's end, which is that of mpirun."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    process.terminate()


def rank(_words: List[str]) -> int:
    """Wait until the rank has ended, which tells its node program how."""
    os.chdir(os.environ["SLIPWAY_OUT"])
    number = os.environ["OMPI_COMM_WORLD_RANK"]
    link = socket.socket(socket.AF_UNIX)
    until_there(lambda: link.connect(HOLD_FILE % number), "no process waits here for rank %s" % number)
    os.unlink(HOLD_FILE % number)
    place = {name: value for name, value in os.environ.items() if name.startswith(OF_MPI)}
    link.sendall(json.dumps(place).encode() + b"\n")
    while link.recv(4096):
        pass
    return 0


def hold(words: List[str]) -> int:
    """Wait for the place in MPI, and become the program, which keeps the connection until its end."""
    listener = socket.socket(socket.AF_UNIX)
    umask = os.umask(0o077)
    listener.bind(HOLD_FILE % os.environ["RANK"])
    os.umask(umask)
    listener.listen(1)
    link = listener.accept()[0]
    listener.close()
    said = b""
    while not said.endswith(b"\n"):
        more = link.recv(1 << 16)
        if not more or len(said) > MAX_BYTES:
            fail("orted told rank %s nothing of its place" % os.environ["RANK"])
        said += more
    os.set_inheritable(link.fileno(), True)
    become(words, dict(os.environ, **json.loads(said.decode())))


# -- what they share


def nodes() -> List[Tuple[str, int]]:
    """Return address and port of each node."""
    found = [place.rpartition(":") for place in os.environ["SLIPWAY_MPI_NODES"].split()]
    return [(host.strip("[]"), int(port)) for host, _, port in found]


def proof(who: bytes, node_nonce: bytes, agent_nonce: bytes, body: bytes) -> bytes:
    key = bytes.fromhex(os.environ["SLIPWAY_MPI_KEY"])
    return hmac.new(key, who + node_nonce + agent_nonce + body, hashlib.sha256).digest()


def receive(connection: socket.socket, size: int, until: Optional[float] = None) -> bytes:
    """Read exactly so many bytes. Raises OSError."""
    data = b""
    while len(data) < size:
        if until is not None:
            connection.settimeout(max(0.001, until - time.monotonic()))
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("it has hung up")
        data += more
    return data


def until_there(connect: Callable[[], Any], problem: str) -> Any:
    """Return what `connect` returns, once it does: the other side may come up later."""
    give_up = time.monotonic() + MEET_S
    while True:
        try:
            return connect()
        except OSError as error:
            if time.monotonic() > give_up:
                fail("%s: %s" % (problem, error))
        time.sleep(PAUSE_S)


def environment_of_mpi() -> Dict[str, str]:
    """Return the environment of mpirun and orted: without the words of schedulers, and with a directory for their files that goes when the
    run does: that of the attempt; in a container, where it cannot be written to, /tmp is the container's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_SCHEDULERS)}
    place = os.path.dirname(os.environ["SLIPWAY_OUT"])
    if not os.access(place, os.W_OK):
        return kept
    directory = os.path.join(place, DIRECTORY)
    os.makedirs(directory, exist_ok=True)
    return dict(kept, TMPDIR=directory)


def die_with_parent(parent: Optional[int] = None) -> None:
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become(words: List[str], environment: Dict[str, str]) -> NoReturn:
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        fail("%s cannot be started: %s: the image must have it, or without an image every node" % (words[0], error.strerror))


def fail(why: str) -> NoReturn:
    say(why)
    sys.exit(127)


def say(text: str) -> None:
    sys.stderr.write("slipway mpi: %s\n" % text)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
