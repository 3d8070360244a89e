"""Which scheduler is here, by its commands, and whether the site file says the same."""

from __future__ import annotations

import shutil
from typing import Final

from base.command import last_lines, run
from base.errors import SlipwayError
from base.finding import Finding
from cluster.detection import SIGNS

SUBJECT: Final = "scheduler"


def find_scheduler(said: str | None = None) -> str:
    """One of SIGNS, or `local` where none of their commands is on PATH. Of several, the one that the site says."""
    names = [name for name, signs in SIGNS.items() if all(map(shutil.which, signs.commands))]
    return said if said is not None and said in names else next(iter(names), "local")


def version_line(scheduler: str) -> str:
    """The first line that the scheduler's command says of its version; empty where it says nothing."""
    try:
        result = run(SIGNS[scheduler].version, timeout_s=10.0)
    except SlipwayError:
        return ""
    return last_lines("\n".join(f"{result.stdout}\n{result.stderr}".split("\n")[:1]), 1).strip()


def judge_choice(said: str, found: str, version: str, known: frozenset[str]) -> tuple[Finding, ...]:
    """Pure: the site's scheduler against the one that is here; `known` are those that this version of Slipway can use."""
    here = f"{found} ({version})" if version else found
    if said == found:
        none = "no scheduler is here; the site says local: runs use this machine"
        findings = [Finding(SUBJECT, "ok", none if said == "local" else f"the commands of {here} are here, as the site says")]
    elif said == "local" and not version:
        text = f"the commands of {found} are installed, but say nothing (no configuration of a cluster is here)"
        findings = [Finding(SUBJECT, "ok", f"{text}; the site says local: runs use this machine")]
    elif said == "local":
        advice = "`slipway doctor --write-site NAME` writes a site file for this cluster"
        findings = [Finding(SUBJECT, "note", f"{here} is here, but the site says scheduler: local: runs use this machine only", advice)]
    else:
        needed = ", ".join(SIGNS[said].commands)
        text = f"the site says scheduler: {said}, but its commands ({needed}) are not on PATH here; found: {here}"
        findings = [Finding(SUBJECT, "error", text, "run this on a login node of that cluster, load its module, or correct `scheduler`")]
    if said not in known:
        text = f"scheduler {said} is not supported by this version of Slipway; supported: {', '.join(sorted(known))}"
        findings.append(Finding(SUBJECT, "error", text, "choose another site"))
    return tuple(findings)


def check_choice(said: str, known: frozenset[str]) -> tuple[Finding, ...]:
    """Look for a scheduler's commands and compare with the site."""
    found = find_scheduler(said)
    return judge_choice(said, found, version_line(found) if found != "local" else "", known)
