"""What somebody finds on a host, in a process of his own: `python3 -c SOURCE`, with an Asked as JSON on standard input; the answer is JSON.

Only the standard library: it is run by the system's interpreter, also as users who cannot read this checkout.
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

LIMIT_S = 5.0


def told_by_proc(token: bytes) -> list[str]:
    """The command lines, as `ps` has them, and environments with the token that can be read."""
    found = []
    for name in ("cmdline", "environ"):
        for path in Path("/proc").glob(f"[0-9]*/{name}"):
            try:
                content = path.read_bytes()
            except OSError:
                continue
            if token in content:
                found.append(str(path))
    return found


def readable_environs() -> list[int]:
    """Processes of others whose environment can be read."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if path.stat().st_uid != os.geteuid() and path.read_bytes():
                found.append(int(path.parts[2]))
        except OSError:
            continue
    return found


def files_with(token: bytes, roots: list[str]) -> list[str]:
    """Files below these directories that can be read, and have it."""
    found = []
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in names:
                path = Path(directory, name)
                try:
                    if path.is_file() and token in path.read_bytes():
                        found.append(str(path))
                except OSError:
                    continue
    return found


def listening() -> list[int]:
    """All TCP ports of this host on which somebody listens, on whatever address."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return sorted({int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"})


def asked(link: socket.socket, target: str) -> str:
    """All that is answered to a request without token, or what becomes of it."""
    try:
        link.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        said = b""
        while len(said) < 1 << 16 and (piece := link.recv(1 << 14)):
            said += piece
        return said.decode("latin-1")
    except OSError as error:
        return type(error).__name__


def by_port(host: str, port: int, target: str = "/") -> str:
    try:
        with socket.create_connection((host, port), LIMIT_S) as link:
            return asked(link, target)
    except OSError as error:
        return type(error).__name__


def by_socket(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(LIMIT_S)
        try:
            link.connect(path)
        except OSError as error:
            return type(error).__name__
        return asked(link, "/")


def main(words: dict[str, Any]) -> dict[str, Any]:
    """Keys of `words`: token, roots, sockets, addresses [(host, [port])], pages [(host, port, target)]."""
    token = words["token"].encode()
    own = [("127.0.0.1", port) for port in listening()]
    return {
        "listening": listening(),
        "proc": told_by_proc(token),
        "environs": readable_environs(),
        "files": files_with(token, words.get("roots", [])),
        "sockets": [by_socket(path) for path in words.get("sockets", [])],
        "ports": {f"{host}:{port}": by_port(host, port) for host, port in [*own, *words.get("addresses", [])]},
        "pages": [by_port(*page) for page in words.get("pages", [])],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.load(sys.stdin))))
