"""Guard a port of 127.0.0.1 by a unix socket: a request without the token gets 403.

The token comes in the address once (`?token=...`), and becomes a cookie of this session; programs send `Authorization: token ...`. Each
connection carries one request, so that each is checked; WebSockets and what else asks for an upgrade pass through after that.

Python 3.6, standard library only.
"""

import contextlib
import hashlib
import hmac
import io
import json
import os
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, Callable, Dict, List, Optional, Tuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

HEAD_LIMIT_S = 30.0
CONNECT_LIMIT_S = 5.0
ACCEPT_PAUSE_S = 0.2
MAX_HEAD = 1 << 16
MAX_UNPROVED = 128
"""Connections that have not shown the token yet: for one more, the oldest is closed."""
FIELD = re.compile(rb"[!-9;-~]+:[^\r\n\0]*\r?\n")
PIECE = 1 << 16
STATUS = "/.slipway/status"
"""The address that the session's supervisor asks for: {"open", "idle_s", "answers"}."""
COOKIES = "slipway-"
"""The beginning of our cookies. A browser sends a cookie to all ports of a host: a program gets none of ours, of other sessions neither."""
OF_ONE_HOP = ("cookie", "authorization", "connection", "keep-alive")
"""Fields that the program does not get as they came."""
WORDS = "This session wants its token: open the whole address that `slipway session ls` shows.\n"
OTHER_PAGE = "Another page asked for this, with the cookie of this session.\n"


class Listener(ThreadingMixIn, UnixStreamServer):
    """A server on a socket in `directory` that only the user can reach, with a thread for each connection. `answer` gets the connection,
    the token, and what to call once the client has shown it: ssh brings all who reach the user's port, on the laptop. Where there are too
    many connections, they wait.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, directory: str, name: str, answer: Callable[[socket.socket, str, Callable[[], None]], None]) -> None:
        with open(os.path.join(directory, "token")) as file:
            token = file.read().strip()
        path = os.path.join(directory, name)
        if os.path.exists(path):
            os.unlink(path)
        self.unproved: Dict[socket.socket, None] = {}
        before = os.umask(0o177)
        try:
            super().__init__(path, lambda one, *_: answer(one, token, lambda: self.proved(one)))  # type: ignore[arg-type]
        finally:
            os.umask(before)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def get_request(self) -> Tuple[socket.socket, Any]:
        """Accept a connection, or pause where no descriptor is left."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection. Many that show no token cost no more than MAX_UNPROVED threads."""
        self.unproved[request] = None
        if len(self.unproved) > MAX_UNPROVED:
            oldest = next(iter(self.unproved.copy()))
            self.proved(oldest)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has been answered."""
        self.proved(request)
        super().shutdown_request(request)

    def proved(self, request: socket.socket) -> None:
        self.unproved.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave a connection that is broken, or got no thread."""


class Use:
    """The use of a port: open connections, and the time of the last one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = 0
        self.last = time.monotonic()

    def count(self, change: int) -> None:
        with self.lock:
            self.open += change
            self.last = time.monotonic()

    def touch(self) -> None:
        self.last = time.monotonic()


def serve(directory: str, port: int) -> None:
    """Listen on `<directory>/p<port>.sock`, in threads of their own."""
    use = Use()
    Listener(directory, "p%d.sock" % port, lambda client, token, proved: answer(client, port, token, cookie_of(token), use, proved))


def cookie_of(token: str) -> str:
    """Return the name of a session's cookie: another one for each, since all of them are at one host, the laptop."""
    return COOKIES + hashlib.sha256(token.encode()).hexdigest()[:12]


def answer(client: socket.socket, port: int, token: str, cookie: str, use: Use, proved: Callable[[], None]) -> None:
    """Answer the one request of a connection, and call `proved` once it has shown the token."""
    with contextlib.closing(client), contextlib.suppress(OSError, ValueError):  # ValueError: an address or a length that is none
        Request(client, port, token, cookie, use, proved)


class Request(BaseHTTPRequestHandler):
    """One request, which is answered when this is made."""

    timeout = HEAD_LIMIT_S

    def __init__(  # noqa: PLR0913 - what a session knows of its port
        self, client: socket.socket, port: int, token: str, cookie: str, use: Use, on_proof: Callable[[], None]
    ) -> None:
        self.port, self.token, self.cookie, self.use, self.on_proof = port, token, cookie, use, on_proof
        super().__init__(client, ("", 0), None)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the token may stand in the address."""

    def handle(self) -> None:
        if not self.read_head():
            return
        self.connection.settimeout(None)
        by, target = self.proved(), without_token(self.path, self.token)
        if by is None:
            self.respond("403 Forbidden", WORDS)
            return
        self.on_proof()
        if by == "cookie" and self.is_cross_origin():
            self.respond("403 Forbidden", OTHER_PAGE)
        elif target != self.path and self.command == "GET" and not self.field("upgrade"):
            cookie = "%s=%s; Path=/; HttpOnly; SameSite=Strict" % (self.cookie, self.token)
            fields = [("Location", target), ("Set-Cookie", cookie), ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-store")]
            self.respond("302 Found", "", fields)  # to the same place without the token, which then stands in no history of the program
        elif urlsplit(self.path).path == STATUS:
            self.respond("200 OK", self.status(), [("Content-Type", "application/json")])
        else:
            self.forward(target)

    def read_head(self) -> bool:
        """Read the first line and the fields, MAX_HEAD bytes at most, and parse them. The library takes 6 MB of fields, in one that is
        malformed it sees the end of them, and a line that is folded or has a lone CR is one field here and two elsewhere.
        """
        lines: List[bytes] = []
        left = MAX_HEAD
        while not lines or lines[-1] not in (b"\r\n", b"\n"):
            line = self.rfile.readline(left)
            left -= len(line)
            if not line.endswith(b"\n"):
                return False
            lines.append(line)
        self.raw_requestline, fields, body = lines[0], lines[1:-1], self.rfile
        if not all(FIELD.fullmatch(line) for line in fields):
            self.respond("400 Bad Request", "a field of the request is malformed\n")
            return False
        self.rfile = io.BytesIO(b"".join(lines[1:]))
        try:
            return self.parse_request()
        finally:
            self.rfile = body

    def field(self, name: str) -> str:
        return ", ".join(self.headers.get_all(name, []))

    def respond(self, status: str, text: str, fields: Optional[List[Tuple[str, str]]] = None) -> None:
        fields = [*(fields or [("Content-Type", "text/plain")]), ("Content-Length", str(len(text.encode()))), ("Connection", "close")]
        self.connection.sendall(head_of("HTTP/1.1 " + status, fields).encode("latin-1") + text.encode())

    def proved(self) -> Optional[str]:
        """Return by what the request shows that it may: `cookie`, `header`, `address`; or None."""
        cookies = [pair.strip().partition("=") for pair in re.split("[;,]", self.field("cookie"))]
        kind, _, shown = self.field("authorization").partition(" ")
        shows: List[Tuple[str, str]] = [
            *(("cookie", value) for name, _, value in cookies if name == self.cookie),
            *((("header", shown.strip()),) if kind.lower() in ("token", "bearer") else ()),
            *(("address", value) for name, value in parse_qsl(urlsplit(self.path).query) if name == "token"),
        ]
        for by, value in shows:
            if hmac.compare_digest(value.encode("latin-1", "replace"), self.token.encode()):
                return by
        return None

    def is_cross_origin(self) -> bool:
        """Return True if a browser sends this for a page of another address. SameSite keeps cookies from other hosts, and not from other
        ports of this one, such as those of another session. To follow a link is no harm.
        """
        host, origin, asked_by = self.field("host"), self.field("origin"), self.field("sec-fetch-site")
        if self.command == "GET" and self.field("sec-fetch-mode") == "navigate":
            return False
        if asked_by in ("same-site", "cross-site"):
            return True
        if origin == "null":  # a sandboxed page has this origin, and so has a form of a page that sends no referrer
            return not asked_by
        return origin != "" and origin.partition("://")[2].lower() != host.lower()

    def status(self) -> str:
        try:
            socket.create_connection(("127.0.0.1", self.port), CONNECT_LIMIT_S).close()
            answers = True
        except OSError:
            answers = False
        return json.dumps({"open": self.use.open, "idle_s": time.monotonic() - self.use.last, "answers": answers})

    def forward(self, target: str) -> None:
        """Pass the request on to the program and its answer back, until one of them has no more to send."""
        try:
            program = socket.create_connection(("127.0.0.1", self.port), CONNECT_LIMIT_S)
        except OSError as error:
            self.respond("502 Bad Gateway", "nothing listens on port %d yet: %s\n" % (self.port, error.strerror or error))
            return
        self.use.count(1)
        try:
            program.settimeout(None)
            program.sendall(self.forwarded(target).encode("latin-1"))
            back = threading.Thread(target=copy, args=(program.recv, program, self.connection, self.use), daemon=True)
            back.start()
            if self.field("upgrade") or "chunked" in self.field("transfer-encoding").lower():
                copy(self.rfile.read1, self.connection, program, self.use)
            else:
                left = int(self.field("content-length") or 0)
                while left > 0:
                    piece = self.rfile.read1(min(PIECE, left))
                    if not piece:
                        program.shutdown(socket.SHUT_WR)
                        break
                    program.sendall(piece)
                    left -= len(piece)
            back.join()
        finally:
            self.use.count(-1)
            program.close()

    def forwarded(self, target: str) -> str:
        """Return the head of the request as the program gets it: without our cookies, and for one request only."""
        fields = [(name, value) for name, value in self.headers.items() if name.lower() not in OF_ONE_HOP]
        others = [pair.strip() for pair in self.field("cookie").split(";") if pair.strip() and not pair.strip().startswith(COOKIES)]
        if others:
            fields.append(("Cookie", "; ".join(others)))
        fields.append(("Connection", "Upgrade" if self.field("upgrade") else "close"))
        return head_of("%s %s %s" % (self.command, target, self.request_version), fields)


def head_of(first: str, fields: List[Tuple[str, str]]) -> str:
    return "\r\n".join([first, *("%s: %s" % field for field in fields)]) + "\r\n\r\n"


def without_token(target: str, token: str) -> str:
    """Return the same place for the program, which writes addresses into its log. Without a token of ours, nothing is changed."""
    parts = urlsplit(target)
    asked = parse_qsl(parts.query, keep_blank_values=True)
    left = [pair for pair in asked if pair != ("token", token)]
    if left == asked:
        return target
    return "/" + urlunsplit(("", "", parts.path, urlencode(left), "")).lstrip("/")


def copy(read: Callable[[int], bytes], source: socket.socket, target: socket.socket, use: Use) -> None:
    """Copy all that comes, to its end."""
    try:
        while True:
            piece = read(PIECE)
            if not piece:
                break
            use.touch()
            target.sendall(piece)
    except OSError:
        use.touch()
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_WR if end is target else socket.SHUT_RD)
