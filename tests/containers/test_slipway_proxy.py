"""The proxy before the ports of a session: what other pages, other sessions and senders of nonsense get."""

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "containers" / "lib"))
try:
    import slipway_proxy
finally:
    sys.path.pop(0)

LIMIT_S = 30.0
COOKIE = "slipway-own"
HEAD = f"Host: 127.0.0.1:20001\r\nCookie: a=1; {COOKIE}=T; slipway-other=U\r\n"
MAY: tuple[tuple[str, str], ...] = (
    ("GET", ""),
    ("POST", "Origin: http://127.0.0.1:20001\r\nSec-Fetch-Site: same-origin\r\n"),
    ("GET", "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\n"),
    ("POST", "Origin: null\r\nSec-Fetch-Site: same-origin\r\n"),
)
MAY_NOT: tuple[tuple[str, str], ...] = (
    ("POST", "Origin: http://127.0.0.1:20002\r\n"),
    ("POST", "Origin: null\r\nSec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\n"),
    ("GET", "Origin: http://127.0.0.1:20002\r\nUpgrade: websocket\r\n"),
    ("GET", "Origin: null\r\nUpgrade: websocket\r\n"),
    ("POST", "Origin: null\r\n"),
    ("GET", "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\n"),
    ("GET", "Origin: https://example.org\r\n"),
)


@contextmanager
def program() -> Iterator[tuple[int, list[bytes]]]:
    """One that takes one connection, and says nothing: its port, and what came."""
    came: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)

        def serve() -> None:
            try:
                link = listener.accept()[0]
            except OSError:
                return
            with link:
                came.append(link.recv(1 << 16))
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], came
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def asked(port: int, text: str, use: slipway_proxy.Use | None = None) -> bytes:
    """What the proxy answers."""
    ours, its = socket.socketpair()
    with ours:
        ours.settimeout(LIMIT_S)
        ours.sendall(text.encode("latin-1"))
        ours.shutdown(socket.SHUT_WR)
        slipway_proxy.answer(its, port, "T", COOKIE, use or slipway_proxy.Use(), lambda: None)
        return ours.recv(1 << 16)


@pytest.mark.parametrize(("method", "fields"), MAY)
def test_a_page_of_the_session_is_served_and_the_program_gets_no_cookie_of_any_session(method: str, fields: str) -> None:
    with program() as (port, came):
        assert asked(port, f"{method} /x HTTP/1.1\r\n{HEAD}{fields}\r\n").startswith(b"HTTP/1.1 200")
    assert b"Cookie: a=1\r\n" in came[0]
    assert b"slipway-" not in came[0]


@pytest.mark.parametrize(("method", "fields"), MAY_NOT)
def test_a_page_of_another_port_has_the_cookie_and_gets_nothing(method: str, fields: str) -> None:
    with program() as (port, came):
        assert asked(port, f"{method} /x HTTP/1.1\r\n{HEAD}{fields}\r\n").startswith(b"HTTP/1.1 403")
    assert came == []


@pytest.mark.parametrize(
    "text", ["GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", "nonsense\r\n\r\n", f"POST / HTTP/1.1\r\n{HEAD}Content-Length: many\r\n\r\n"]
)
def test_nonsense_ends_its_connection_and_is_no_use_of_the_session(text: str) -> None:
    use = slipway_proxy.Use()
    use.last = 0.0
    with program() as (port, _):
        asked(port, text, use)
    assert use.open == 0
    assert use.last == 0.0 or "POST" in text


def test_a_program_never_sees_the_token_that_stands_in_an_address() -> None:
    use = slipway_proxy.Use()
    found = asked(9, f"GET /a?token=T&b=1 HTTP/1.1\r\n{HEAD}\r\n", use)  # opened a second time: the cookie is there already
    assert found.startswith(b"HTTP/1.1 302")
    assert b"Location: /a?b=1\r\n" in found
    with program() as (port, came):
        assert asked(port, "POST /a?token=T&token=mine HTTP/1.1\r\nHost: x\r\n\r\n", use).startswith(b"HTTP/1.1 200")
    assert came[0].startswith(b"POST /a?token=mine HTTP/1.1\r\n")


def test_each_session_has_a_cookie_of_its_own() -> None:
    assert slipway_proxy.cookie_of("one") != slipway_proxy.cookie_of("two")
    assert "one" not in slipway_proxy.cookie_of("one")


@pytest.mark.parametrize("line", ["no field", "X : a", " folded: a", "X: a\rOrigin: http://127.0.0.1:20002", ": a"])
def test_a_field_that_is_read_in_two_ways_is_refused(line: str) -> None:
    assert asked(9, f"GET /x HTTP/1.1\r\n{HEAD}{line}\r\nOrigin: http://127.0.0.1:20002\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_more_than_a_head_is_not_read() -> None:
    ours, its = socket.socketpair()
    with ours:
        sending = threading.Thread(target=ours.sendall, args=(f"GET /x HTTP/1.1\r\n{HEAD}X: ".encode() + b"x" * slipway_proxy.MAX_HEAD,))
        sending.start()
        slipway_proxy.answer(its, 9, "T", COOKIE, slipway_proxy.Use(), lambda: pytest.fail("it is no request"))
        sending.join()


def test_a_body_that_is_cut_ends_for_the_program_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        text = f"POST /x HTTP/1.1\r\n{HEAD}Content-Length: 9\r\n\r\ncut"
        asking = threading.Thread(target=asked, args=(listener.getsockname()[1], text))
        asking.start()
        with listener.accept()[0] as link:
            link.settimeout(LIMIT_S)
            came = b""
            while piece := link.recv(1 << 16):
                came += piece
        asking.join()
    assert came.endswith(b"\r\n\r\ncut")


def test_of_many_who_show_no_token_the_oldest_go_and_the_user_is_served(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("T")
    strangers = []
    with program() as (port, _):
        slipway_proxy.serve(str(tmp_path), port)
        try:
            for _ in range(slipway_proxy.MAX_UNPROVED + 2):
                strangers.append(socket.socket(socket.AF_UNIX))
                strangers[-1].connect(str(tmp_path / f"p{port}.sock"))
            with socket.socket(socket.AF_UNIX) as ours:
                ours.connect(str(tmp_path / f"p{port}.sock"))
                ours.settimeout(LIMIT_S)
                ours.sendall(b"GET /x HTTP/1.1\r\nAuthorization: token T\r\n\r\n")
                assert ours.recv(1 << 16).startswith(b"HTTP/1.1 200")
            strangers[0].settimeout(LIMIT_S)
            assert strangers[0].recv(1) == b""
            strangers[-1].setblocking(False)
            with pytest.raises(BlockingIOError):
                strangers[-1].recv(1)
        finally:
            for stranger in strangers:
                stranger.close()
