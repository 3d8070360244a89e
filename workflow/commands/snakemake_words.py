"""Snakemake's command line and what it said when it failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from cluster.detection import scheduler_of
from cluster.installation import PROFILES
from cluster.schedulers import jobs_of, with_jobs
from workflow.commands.run_words import Words
from workflow.dag.execution import NODES, Way
from workflow.dag.snakemake_call import snakemake_argv
from workflow.study.site import Site

_OURS: Final = re.compile(r"^snakemake: (?P<message>.+)$")
_USAGE: Final = re.compile(r"^\S+: error: (?P<message>.+)$")
_ERROR: Final = re.compile(r"^(?:\w+\.)*(?P<kind>\w*(?:Error|Exception))(?: in (?!rule )[^:]*(?:, line \d+)?)?:(?P<message>.*)$")
_IN_RULE: Final = re.compile(r"^Error in rule (?P<rule>\w+):$")
FILES: Final = ("--report", "--report-stylesheet", "--archive", "--export-cwl")
"""Options of Snakemake whose value is a file."""
A_JOB_FAILED: Final = "At least one job did not complete successfully."


def profile_name(site: Site, environ: Mapping[str, str]) -> str:
    """The profile that fits the site and the place we are at."""
    jobs = jobs_of(site.scheduler)
    if jobs is None:
        return site.scheduler
    return jobs.SHARED_PROFILE if scheduler_of(environ) == site.scheduler else jobs.PROFILE


def profile_path(name: str) -> str:
    """What Snakemake is told: one of ours by its name, or the user's own as it is. Raises ConfigError."""
    own = PROFILES / name
    if "/" not in name and own.is_dir():
        return str(own)
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.absolute())
    known = ", ".join(sorted(entry.name for entry in PROFILES.iterdir() if entry.is_dir()))
    raise ConfigError(
        f"--profile {name}: no profile of that name, and no directory; valid: {known}, or the path of a directory of your own"
    )


def profile_way(path: str) -> Way | None:
    """How one of our profiles makes runs; None: it is the user's own."""
    name = Path(path).name
    jobs = next((jobs for jobs in with_jobs().values() if name in (jobs.PROFILE, jobs.SHARED_PROFILE)), None)
    if Path(path).parent != PROFILES:
        return None
    return "local" if jobs is None else "jobs" if name == jobs.PROFILE else "allocation"


def child_argv(profile: str, study: Path, directory: Path, words: Words, environ: Mapping[str, str]) -> tuple[str, ...]:
    """All words of the child. It works in `directory`, whatever ours is."""
    many = [] if words.has("--directory", "-d") else ["--directory", str(directory)]
    shared = next((jobs for jobs in with_jobs().values() if Path(profile).name == jobs.SHARED_PROFILE), None)
    count = None if shared is None or words.has("--resources", "--res") else shared.num_nodes_of_job(environ)
    if count is not None:
        many += ["--resources", f"{NODES}={count}"]
    rest = _files_of_the_user(words.rest, directory)
    if words.config:
        rest += ["--config", *(f"{key}={value}" for key, value in words.config.items())]
    return snakemake_argv(profile, study, many, rest)


def _files_of_the_user(rest: Sequence[str], directory: Path) -> list[str]:
    """`rest` with the files that Snakemake is to write relative to where the user is, and not to `directory`. Raises ConfigError for a
    report of Snakemake's in place of ours."""
    words = list(rest)
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in FILES:
            continue
        if not equals and index + 1 < len(words) and not words[index + 1].startswith("-"):
            value = words[index + 1] = str(Path(words[index + 1]).absolute())
        elif equals or name == "--report":
            value = str(Path(value or "report.html").absolute())
            words[index] = f"{name}={value}"
        if value and Path(value) == directory.absolute() / "report.html":
            raise ConfigError(f"{word}: {value} is the report of the study itself, which Snakemake's would replace; name another file")
    return words


def what_it_said(log: str) -> str:
    """The error in Snakemake's words, as far as it can be told from all else that it prints; "" if there is none."""
    lines = log.splitlines()
    for index in reversed(range(len(lines))):
        told = _OURS.match(lines[index]) or _USAGE.match(lines[index])
        if told:
            return told["message"]
        error = _ERROR.match(lines[index])
        message = " ".join(filter(None, [error["message"].strip(), *_paragraph(lines[index + 1 :])])) if error else ""
        if error and message and message != A_JOB_FAILED:
            return message if error["kind"] in ("Error", "WorkflowError") else f"{error['kind']}: {message}"
    return ""


def is_usage(log: str) -> bool:
    """Whether it refused an option."""
    return any(_USAGE.match(line) for line in log.splitlines()[-3:])


def failed_rules(log: str) -> list[str]:
    """The rules of which a job failed, each once."""
    return list(dict.fromkeys(match["rule"] for line in log.splitlines() if (match := _IN_RULE.match(line))))


def _paragraph(lines: Sequence[str]) -> list[str]:
    """Up to a blank line or a place in a program."""
    taken = []
    for line in lines:
        if not line.strip() or line.startswith(("  File ", "[", "Traceback")):
            break
        taken.append(line.strip())
    return taken
