"""Turn a check that hangs, crashes or is killed into a finding, so that the rest goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from base.errors import SlipwayError
from base.finding import Finding
from base.limited import call_limited


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check: a plain function that returns findings, and how long it may take."""

    subject: str
    function: Callable[..., Iterable[Finding]]
    arguments: tuple[Any, ...] = ()
    timeout_s: float = 20.0


def guarded(check: Check) -> tuple[Finding, ...]:
    """Run a check in a child process and return its findings, with at most one more about the check itself."""
    start = time.monotonic()
    try:
        return tuple(map(Finding.from_json, call_limited(check.subject, _answers, check, timeout_s=check.timeout_s)))
    except SlipwayError as error:
        if time.monotonic() - start >= check.timeout_s:
            text = f"the check {_name(check)} did not end within {check.timeout_s:g} s: what it looks at hangs, or is very slow"
            return (Finding(check.subject, "error", text, "look at it by hand, with `timeout 10 ls` or the like"),)
        text = f"the check {_name(check)} failed: {error}"
        return (Finding(check.subject, "warning", text, "this part is not checked; if the reason is not the site's, report it"),)


def _answers(check: Check) -> list[dict[str, Any]]:
    return [finding.to_json() for finding in check.function(*check.arguments)]


def _name(check: Check) -> str:
    return check.function.__name__.removeprefix("check_").replace("_", " ")
