"""A unix socket before a port of 127.0.0.1: what comes without the token gets 403.

The token comes in the address once (`?token=...`), and becomes a cookie of this session; programs say `Authorization: token ...`. Each
connection carries one request, so that each is asked; WebSockets and what else asks for an upgrade pass through after that.

Python 3.6, standard library only.
"""

import contextlib
import hashlib
import hmac
import json
import os
import re
import socket
import threading
import time
from typing import List, NamedTuple, Optional, Tuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

MAX_HEAD = 1 << 16
HEAD_LIMIT_S = 30.0
CONNECT_LIMIT_S = 5.0
ACCEPT_PAUSE_S = 0.2
PIECE = 1 << 16
STATUS = "/.slipway/status"
"""What the session's supervisor asks: {"open", "idle_s", "answers"}."""
COOKIES = "slipway-"
"""How our cookies begin. A browser sends a cookie to all ports of a host: a program gets none of ours, of other sessions neither."""
REFUSED = "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
WORDS = "This session wants its token: open the whole address that `slipway session ls` shows.\n"
FOREIGN = "Another page asked for this, with the cookie of this session.\n"


class Head(NamedTuple):
    """Of a request: its first line, its header lines, and what came behind them."""

    method: str
    target: str
    version: str
    fields: List[Tuple[str, str]]
    rest: bytes

    def get(self, name: str) -> str:
        """The values of a field, all of them."""
        return ", ".join(value for key, value in self.fields if key.lower() == name)


class Use:
    """How a port is used: open connections, and when the last one was."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = 0
        self.last = time.monotonic()

    def count(self, change: int) -> None:
        """One more, or one less."""
        with self.lock:
            self.open += change
            self.last = time.monotonic()

    def touch(self) -> None:
        """Something was said."""
        self.last = time.monotonic()


def serve(directory: str, port: int) -> None:
    """Listen on `<directory>/p<port>.sock`, in threads of their own."""
    path = os.path.join(directory, "p%d.sock" % port)
    if os.path.exists(path):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        server.bind(path)
    finally:
        os.umask(before)
    server.listen(128)
    with open(os.path.join(directory, "token")) as file:
        token = file.read().strip()
    threading.Thread(target=accept, args=(server, port, token, cookie_of(token), Use()), daemon=True).start()


def cookie_of(token: str) -> str:
    """The name of a session's cookie: another one for each, since all of them are at one host, the laptop."""
    return COOKIES + hashlib.sha256(token.encode()).hexdigest()[:12]


def accept(server: socket.socket, port: int, token: str, cookie: str, use: Use) -> None:
    """For ever; where there are too many connections, they wait."""
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            time.sleep(ACCEPT_PAUSE_S)
            continue
        try:
            threading.Thread(target=answer, args=(client, port, token, cookie, use), daemon=True).start()
        except RuntimeError:  # no thread is to be had
            client.close()


def answer(client: socket.socket, port: int, token: str, cookie: str, use: Use) -> None:
    """One connection, one request."""
    with contextlib.closing(client), contextlib.suppress(OSError, ValueError):  # ValueError: an address or a length that is none
        client.settimeout(HEAD_LIMIT_S)
        head = read_head(client)
        if head is None:
            return
        client.settimeout(None)
        by, target = proved(head, token, cookie), without_token(head.target, token)
        if by is None:
            client.sendall((REFUSED % (len(WORDS), WORDS)).encode())
        elif by == "cookie" and is_foreign(head):
            client.sendall((REFUSED % (len(FOREIGN), FOREIGN)).encode())
        elif target != head.target and head.method == "GET" and not head.get("upgrade"):
            client.sendall(with_cookie(target, token, cookie).encode())
        elif urlsplit(head.target).path == STATUS:
            client.sendall(status(port, use).encode())
        else:
            forward(client, head._replace(target=target), port, use)


def read_head(client: socket.socket) -> Optional[Head]:
    """None where it is not one of HTTP/1."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(PIECE)
        if not piece or len(data) > MAX_HEAD:
            return None
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    pairs = [line.partition(":") for line in lines[1:]]
    if len(words) != 3 or not words[2].startswith("HTTP/1") or not all(between for _, between, _ in pairs):
        return None
    return Head(words[0], words[1], words[2], [(name, value.strip()) for name, _, value in pairs], rest)


def proved(head: Head, token: str, cookie: str) -> Optional[str]:
    """By what the request shows that it may: `cookie`, `header`, `address`; None."""
    cookies = [pair.strip().partition("=") for pair in re.split("[;,]", head.get("cookie"))]
    kind, _, shown = head.get("authorization").partition(" ")
    asked = parse_qsl(urlsplit(head.target).query)
    shows: List[Tuple[str, str]] = [
        *(("cookie", value) for name, _, value in cookies if name == cookie),
        *((("header", shown.strip()),) if kind.lower() in ("token", "bearer") else ()),
        *(("address", value) for name, value in asked if name == "token"),
    ]
    for by, value in shows:
        if hmac.compare_digest(value.encode("latin-1", "replace"), token.encode()):
            return by
    return None


def is_foreign(head: Head) -> bool:
    """Whether a browser sends this for a page of another address. SameSite keeps cookies from other hosts, and not from other ports of this
    one, such as those of another session. To follow a link is no harm."""
    host, origin, asked_by = head.get("host"), head.get("origin"), head.get("sec-fetch-site")
    if head.method == "GET" and head.get("sec-fetch-mode") == "navigate":
        return False
    if asked_by in ("same-site", "cross-site"):
        return True
    if origin == "null":  # a sandboxed page has this origin, and so has a form of a page that sends no referrer
        return not asked_by
    return origin != "" and origin.partition("://")[2].lower() != host.lower()


def without_token(target: str, token: str) -> str:
    """The same place for the program, which writes addresses into its log. Where there is no token of ours, nothing is changed."""
    parts = urlsplit(target)
    asked = parse_qsl(parts.query, keep_blank_values=True)
    left = [pair for pair in asked if pair != ("token", token)]
    if left == asked:
        return target
    return "/" + urlunsplit(("", "", parts.path, urlencode(left), "")).lstrip("/")


def with_cookie(place: str, token: str, cookie: str) -> str:
    """Send the browser to the same place without the token, which then stands in no history of the program."""
    return (
        "HTTP/1.1 302 Found\r\nLocation: %s\r\nSet-Cookie: %s=%s; Path=/; HttpOnly; SameSite=Strict\r\n"
        "Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    ) % (place, cookie, token)


def status(port: int, use: Use) -> str:
    """Whether the program listens, and when it was used last."""
    try:
        socket.create_connection(("127.0.0.1", port), CONNECT_LIMIT_S).close()
        answers = True
    except OSError:
        answers = False
    said = json.dumps({"open": use.open, "idle_s": time.monotonic() - use.last, "answers": answers})
    return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(said), said)


def forward(client: socket.socket, head: Head, port: int, use: Use) -> None:
    """To the program and back, until one of them has no more to say."""
    try:
        program = socket.create_connection(("127.0.0.1", port), CONNECT_LIMIT_S)
    except OSError as error:
        words = "nothing listens on port %d yet: %s\n" % (port, error.strerror or error)
        client.sendall(("HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(words), words)).encode())
        return
    use.count(1)
    try:
        program.settimeout(None)
        program.sendall(forwarded(head).encode("latin-1") + head.rest)
        back = threading.Thread(target=copy, args=(program, client, use), daemon=True)
        back.start()
        if head.get("upgrade") or "chunked" in head.get("transfer-encoding").lower():
            copy(client, program, use)
        else:
            left = int(head.get("content-length") or 0) - len(head.rest)
            while left > 0:
                piece = client.recv(min(PIECE, left))
                if not piece:
                    break
                program.sendall(piece)
                left -= len(piece)
        back.join()
    finally:
        use.count(-1)
        program.close()


def forwarded(head: Head) -> str:
    """The request as the program gets it: without our cookies, and for one request only."""
    fields = [(name, value) for name, value in head.fields if name.lower() not in ("cookie", "authorization", "connection", "keep-alive")]
    others = [pair.strip() for pair in head.get("cookie").split(";") if pair.strip() and not pair.strip().startswith(COOKIES)]
    if others:
        fields.append(("Cookie", "; ".join(others)))
    fields.append(("Connection", "Upgrade" if head.get("upgrade") else "close"))
    lines = ["%s %s %s" % (head.method, head.target, head.version), *("%s: %s" % field for field in fields)]
    return "\r\n".join(lines) + "\r\n\r\n"


def copy(source: socket.socket, target: socket.socket, use: Use) -> None:
    """All that comes, to its end."""
    try:
        while True:
            piece = source.recv(PIECE)
            if not piece:
                break
            use.touch()
            target.sendall(piece)
    except OSError:
        use.touch()
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_WR if end is target else socket.SHUT_RD)
