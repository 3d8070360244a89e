"""List all checks of `slipway doctor` in their order, run them, and be the program that runs those of a node.

`python -m extras.doctor.checks` is that program: its first line of input is a JSON object (see `nodes.request_of`), and so is its answer.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from base.calls import call_limited
from base.errors import SlipwayError
from cluster.detection import node_name
from extras.doctor.engines import check_engines
from extras.doctor.machine import check_gpus, check_limits, check_network
from extras.doctor.nodes import MARK, NODES_S, check_nodes, context_of
from extras.doctor.schedulers import check_choice, check_scheduler
from extras.doctor.storage import SEEN_S, check_cache, check_cache_path, check_seen, check_storage
from extras.doctor.types import Check, Context, Finding, Location, merged

TYPED: Final[tuple[Location, ...]] = ("login", "job", "alone")
MACHINE: Final[tuple[Location, ...]] = ("login", "node", "alone")
RUNS: Final[tuple[Location, ...]] = ("node", "alone")
CHECKS: Final = (
    Check("scheduler", check_choice, TYPED),
    Check("scheduler", check_scheduler, TYPED, 90),
    Check("storage", check_storage, TYPED, 40),
    Check("launcher", check_nodes, ("job",), NODES_S + 20),
    Check("cache", check_cache_path, ("login",)),
    Check("cache", check_cache, RUNS, 30),
    Check("limits", check_limits, MACHINE),
    Check("network", check_network, MACHINE),
    Check("gpus", check_gpus, MACHINE, 30),
    Check("engines", check_engines, MACHINE, 30),
    Check("storage", check_seen, ("node",), SEEN_S + 10),
)


def run_checks(context: Context, report: Callable[[str], None]) -> tuple[Finding, ...]:
    """Run every check of this place, one after the other, so that they do not slow each other down; `report` gets what is looked at."""
    found: list[Finding] = []
    for check in CHECKS:
        if context.place in check.places:
            report(f"{check.subject}: {_name(check)}")
            found += run_guarded(check, context)
    return merged(found)


def run_guarded(check: Check, context: Context) -> tuple[Finding, ...]:
    """Run a check in a child process and return its findings; one that hangs, crashes or is killed becomes a finding."""
    start = time.monotonic()
    try:
        found = call_limited(check.subject, _findings_of, check, context, timeout_s=check.timeout_s)
        return msgspec.convert(found, tuple[Finding, ...])
    except SlipwayError as error:
        if time.monotonic() - start >= check.timeout_s:
            text = f"the check {_name(check)} did not end within {check.timeout_s:g} s: what it looks at hangs, or is very slow"
            return (Finding(check.subject, "error", text, "look at it by hand, with `timeout 10 ls` or the like"),)
        text = f"the check {_name(check)} failed: {error}"
        return (Finding(check.subject, "warning", text, "this part is not checked; if the reason is not the site's, report it"),)


def _findings_of(check: Check, context: Context) -> object:
    return msgspec.to_builtins(tuple(check.function(context)))


def _name(check: Check) -> str:
    return check.function.__name__.removeprefix("check_").replace("_", " ")


def main() -> int:
    """Print the answer of this node. The launcher's arguments are not needed."""
    name = node_name(os.environ) or os.uname().nodename
    context = context_of(sys.stdin.readline(), name)
    findings = tuple(replace(finding, nodes=(name,)) for finding in run_checks(context, lambda _text: None))
    sys.stdout.write(f"\n{MARK} {msgspec.json.encode(findings).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
