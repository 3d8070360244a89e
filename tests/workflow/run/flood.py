"""`python -m tests.workflow.run.flood MODE RATE`: connects to everything that listens in its network namespace, until its input ends.

MODE `hold`: at most RATE connections stay open, as many as are taken, silent. MODE `pass`: RATE a second, each with a word of garbage, of
which the last 500 stay open. As another user would: it learns the ports from /proc/net/tcp and knows nothing else. Last it says how many
connections it made to each port. To be started in a network namespace of its own only.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import struct
import sys
import time
from collections import Counter, deque
from pathlib import Path

LISTEN = "0A"
LOOK_EVERY_S = 0.02
AT_ONCE = 100
WORDS = (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"node":0,"challenge":"x","proof":"\\ud800"}\n', b'{"more":null}\n', b"\xff" * 300, b"\0" * 148)


def listening() -> list[tuple[str, int]]:
    """All listeners of this network namespace."""
    found = []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state = line.split()[:4]
        if state == LISTEN:
            address, port = local.split(":")
            found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
    return found


def knock(address: tuple[str, int], word: bytes) -> socket.socket | None:
    """A connection on its way; its word is sent if it stands at once, as it does on this machine."""
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        connection.connect_ex(address)
        if word:
            connection.send(word)
    except OSError:
        return connection
    return connection


def main() -> None:
    mode, most = sys.argv[1], int(sys.argv[2])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept = min(most if mode == "hold" else 500, hard - 100)
    made: Counter[int] = Counter()
    open_now: deque[socket.socket] = deque()
    targets: list[tuple[str, int]] = []
    begun, looked, count = time.monotonic(), 0.0, 0
    while not select.select([0], [], [], 0)[0]:
        now = time.monotonic()
        if now - looked > LOOK_EVERY_S:
            targets, looked = listening(), now
        allowed = count + AT_ONCE if mode == "hold" else min(count + AT_ONCE, int((now - begun) * most))
        if not targets:
            begun, count = now, 0
        if not targets or count >= allowed:
            select.select([0], [], [], 0.001)
            continue
        while count < allowed:
            address = targets[count % len(targets)]
            while len(open_now) >= kept:
                open_now.popleft().close()
            connection = knock(address, b"" if mode == "hold" else WORDS[count // len(targets) % len(WORDS)])
            if connection is not None:
                open_now.append(connection)
            made[address[1]] += 1
            count += 1
    sys.stdout.write(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
