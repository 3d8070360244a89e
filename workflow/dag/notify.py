"""Notify people of the state of a study: by the machine's own sendmail, or by a webhook of Slack's form. It never fails the study."""

import http.client
import json
import logging
import os
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from base import jsonfile, process
from base.errors import ConfigError, RecordError, SlipwayError
from workflow.run.record.reading import MAX_BYTES
from workflow.study.paths import record_path
from workflow.study.site import Notify

logger = logging.getLogger(__name__)

SENDMAIL: Final = "/usr/sbin/sendmail"
TIMEOUT_S: Final = 15.0
"""The seconds that the mail program may take, and that the server of a webhook may be silent."""
LOOK_S: Final = 30.0
"""The seconds between two looks for a failed run."""
HERE: Final = ("localhost", "127.0.0.1", "::1")
MAX_URL_BYTES: Final = 4096


@dataclass(frozen=True, kw_only=True)
class Notification:
    """A notification: one line, and more of them."""

    subject: str
    lines: tuple[str, ...]


def send_all(notify: Notify, notification: Notification, environ: Mapping[str, str]) -> list[str]:
    """Send a notification to everybody. Return for each who could not be reached why, as a sentence."""
    return [problem for way in _ways(notify, notification, environ) if (problem := _tried(*way)) is not None]


def _ways(notify: Notify, notification: Notification, environ: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], None]]]:
    if notify.mail:
        yield f"mail to {', '.join(notify.mail)}", lambda: send_mail(notify.mail, notification)
    if notify.webhook_env is not None or notify.webhook_file is not None:
        yield "the webhook", lambda: post(webhook_url(notify, environ), notification)


def _tried(what: str, send: Callable[[], None]) -> str | None:
    try:
        send()
    except (SlipwayError, OSError, ValueError) as error:
        return f"{what} was not delivered: {error}"
    return None


# -- mail


def mail_text(to: Sequence[str], notification: Notification) -> str:
    """Return a message as sendmail reads it."""
    message = EmailMessage(policy=SMTP.clone(linesep="\n"))
    message["To"] = ", ".join(to)
    message["Subject"] = " ".join(f"[slipway] {notification.subject}".split())
    message.set_content("\n".join((notification.subject, "", *notification.lines)) + "\n")
    return message.as_string()


def send_mail(to: Sequence[str], notification: Notification, program: str = SENDMAIL) -> None:
    """Give the message to the machine's mail program, which delivers it when it can. Raises SlipwayError."""
    result = process.run((program, "-i", "--", *to), timeout_s=TIMEOUT_S, stdin=mail_text(to, notification))
    if result.returncode:
        raise SlipwayError(process.describe(result))


# -- webhook


def webhook_url(notify: Notify, environ: Mapping[str, str]) -> str:
    """Read the webhook's URL from the variable, else from the file. Raises ConfigError, which does not hold it; OSError."""
    if notify.webhook_env is not None:
        url, where = environ.get(notify.webhook_env, ""), f"${notify.webhook_env}"
    else:
        assert notify.webhook_file is not None
        url, where = _url_in(notify.webhook_file), str(notify.webhook_file)
    if not url:
        raise ConfigError(f"{where} holds no URL here; set it where the study is started (a job of `slipway submit` has the file only)")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ConfigError(f"what {where} holds is not a URL") from error
    if not host or parts.scheme not in ("https", "http") or any(sign <= " " for sign in url):
        raise ConfigError(f"what {where} holds is not a URL; valid: https://HOST/PATH")
    if parts.scheme == "http" and host not in HERE:
        raise ConfigError(f"the URL in {where} is http, by which everybody on the way to {host} could read it; valid: https")
    return url


def _url_in(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(f"{path} must be a file of yours that nobody else may read: chmod 600 {path}")
        return file.read(MAX_URL_BYTES).strip()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A refusal of redirects: the notification goes to nobody else."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def post(url: str, notification: Notification) -> None:
    """Send a notification as Slack takes it. Raises SlipwayError, without the URL, whose path is a secret."""
    body = json.dumps({"text": "\n".join((f"*{notification.subject}*", *notification.lines))}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")  # noqa: S310 - see webhook_url
    host = urlsplit(url).hostname
    try:
        urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S).close()
    except urllib.error.HTTPError as error:
        error.close()
        words = http.client.responses.get(error.code, "")  # the server's own words may repeat the path
        raise SlipwayError(f"{host} answered {error.code} {words}".rstrip()) from None
    except (http.client.HTTPException, ValueError) as error:  # its words may hold what was asked for, or any bytes of the server
        raise SlipwayError(f"{host} did not answer in HTTP ({type(error).__name__})") from None
    except OSError as error:
        raise SlipwayError(f"{host} cannot be reached: {getattr(error, 'reason', None) or error}") from None


# -- the first failure


def watch_failures(notify: Notify, results: Path, runs: Sequence[str], look_s: float = LOOK_S) -> threading.Thread:
    """Look from now on for the first of `runs` that gets a result which is no `ok`, and tell of it, beside Snakemake."""
    left = {run_id: path for run_id in runs if not (path := record_path(results, run_id)).exists()}
    thread = threading.Thread(target=_watch, args=(notify, results.name, left, look_s), name="notify", daemon=True)
    thread.start()
    return thread


def _watch(notify: Notify, study: str, left: dict[str, Path], look_s: float) -> None:
    while left:
        threading.Event().wait(look_s)
        new = [run_id for run_id, path in left.items() if path.exists()]
        notification = next((found for run_id in new if (found := _failure(study, run_id, left[run_id])) is not None), None)
        if notification is not None:
            for problem in send_all(notify, notification, os.environ):
                logger.warning("%s", problem)
            return
        for run_id in new:
            del left[run_id]


class _Outcome(msgspec.Struct):
    status: str
    status_reason: str | None


def _failure(study: str, run_id: str, path: Path) -> Notification | None:
    try:
        record = msgspec.json.decode(jsonfile.read_content(path, max_bytes=MAX_BYTES), type=_Outcome)
    except (RecordError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if record.status == "ok":
        return None
    lines = (f"{run_id}: {record.status_reason}", f"record: {path}")
    return Notification(subject=f"{study}: the first run failed ({record.status})", lines=lines)
