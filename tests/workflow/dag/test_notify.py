"""Who is told how a study ends: what is sent, and that a webhook's secret stands in no message of ours."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError, SlipwayError
from base.jsonfile import publish_json
from workflow.dag.notify import Notification, mail_text, post, send_all, send_mail, watch_failures, webhook_url
from workflow.study.site import Notify
from workflow.study.value_types import NotifyKeys

NEWS = Notification(subject="digits: 3 of 4 runs have a result\nBcc: x@y", lines=("report: /r/report.html", "ä"))


@contextmanager
def server(code: int = 200, place: str = "") -> Iterator[tuple[str, list[Any]]]:
    """A webhook on this machine: its URL, and what it was told."""
    told: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(code, self.path)
            if place:
                self.send_header("Location", place)
            self.end_headers()

        def log_message(self, *_words: Any) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{found.server_port}/secret", told
        finally:
            found.shutdown()
            thread.join()


def test_a_mail_is_one_message_whatever_the_subject_holds() -> None:
    message = message_from_string(mail_text(("ada@example.org", "bob"), NEWS))
    assert message["To"] == "ada@example.org, bob"
    assert message["Bcc"] is None
    assert str(message["Subject"]).startswith("[slipway] digits: 3 of 4 runs")


@pytest.mark.processes
def test_a_mail_is_handed_to_the_machine_s_own_program(tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/argv; cat >{tmp_path}/mail\n')
    program.chmod(0o755)
    send_mail(("ada@example.org",), NEWS, str(program))
    assert (tmp_path / "argv").read_text() == "-i -- ada@example.org\n"
    assert message_from_string((tmp_path / "mail").read_text())["To"] == "ada@example.org"
    program.write_text("#!/bin/sh\ncat >/dev/null; echo 'no route' >&2; exit 69\n")
    with pytest.raises(SlipwayError, match="no route"):
        send_mail(("ada@example.org",), NEWS, str(program))


def test_a_webhook_gets_what_slack_takes() -> None:
    with server() as (url, told):
        assert send_all(Notify(webhook_env="HOOK"), NEWS, {"HOOK": url}) == []
    assert told == [{"text": f"*{NEWS.subject}*\nreport: /r/report.html\nä"}]


def test_what_is_told_goes_to_nobody_else_and_an_error_holds_no_secret() -> None:
    with server() as (other, told), server(302, other) as (url, _), pytest.raises(SlipwayError) as caught:
        post(url, NEWS)
    assert (told, str(caught.value)) == ([], "127.0.0.1 answered 302 Found")
    (problem,) = send_all(Notify(webhook_env="HOOK"), NEWS, {"HOOK": url})
    assert problem.startswith("the webhook was not delivered: 127.0.0.1 cannot be reached: ")
    assert "secret" not in problem


@pytest.mark.parametrize("answer", [b"hello, this is no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"])
def test_an_answer_that_is_none_is_a_problem_and_no_defect(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as link:
                link.recv(1 << 16)
                link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        (problem,) = send_all(Notify(webhook_env="HOOK"), NEWS, {"HOOK": f"http://127.0.0.1:{listener.getsockname()[1]}/secret"})
        thread.join()
    assert "did not answer in HTTP" in problem
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", r"\$HOOK holds no URL here"),
        ("http://example.org/secret", "is http, by which everybody on the way to example.org could read it"),
        ("file:///etc/secret", "what .*HOOK holds is not a URL"),
        ("https://[secret", "what .*HOOK holds is not a URL"),
        ("https://example.org/a secret", "what .*HOOK holds is not a URL"),
    ],
)
def test_a_url_that_cannot_be_is_told_without_it(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        webhook_url(Notify(webhook_env="HOOK"), {"HOOK": url})
    assert "secret" not in str(caught.value)


def test_a_file_with_the_url_is_closed_to_others(tmp_path: Path) -> None:
    file = tmp_path / "hook"
    file.write_text("https://example.org/x\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="nobody else may read: chmod 600"):
        webhook_url(Notify(webhook_file=file), {})
    file.chmod(0o600)
    assert webhook_url(Notify(webhook_file=file), {}) == "https://example.org/x"
    (problem,) = send_all(Notify(webhook_file=tmp_path / "gone"), NEWS, {})
    assert "No such file" in problem


def test_the_first_run_that_fails_is_told_of_once(tmp_path: Path) -> None:
    results = tmp_path / "digits"
    runs = {run_id: results / "runs" / run_id / "record.json" for run_id in ("a-r1", "b-r1", "b-r2", "c-r1", "d-r1")}
    for path in runs.values():
        path.parent.mkdir(parents=True)
    publish_json(runs["a-r1"], {"status": "error", "status_reason": "of before"})
    with server() as (url, told):
        file = tmp_path / "hook"
        file.write_text(url)
        file.chmod(0o600)
        thread = watch_failures(Notify(webhook_file=file), results, list(runs), look_s=0.5)
        publish_json(runs["b-r1"], {"status": "ok", "status_reason": None})
        publish_json(runs["b-r2"], {"status": 5, "status_reason": ["this is", "no record"]})
        publish_json(runs["c-r1"], {"status": "oom", "status_reason": "rank 0 ran out of memory"})
        thread.join(60)
        assert not thread.is_alive()
    assert [one["text"].splitlines()[:2] for one in told] == [["*digits: the first run failed (oom)*", "c-r1: rank 0 ran out of memory"]]


@pytest.mark.parametrize("keys", [{"mail": ["a\nb"]}, {"webhook_env": "https://x"}, {"when": ["never"]}, {"url": "https://x"}])
def test_what_is_no_address_nor_variable_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(keys))):
        NotifyKeys.model_validate(keys)
