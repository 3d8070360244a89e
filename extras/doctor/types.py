"""Define what the checks of `slipway doctor` share: a finding, the machine that is looked at, a check, and a value for a site file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from cluster.schedulers.queries import QUICK_ANSWER_S, Server, ask
from workflow.study.site import Site

Level = Literal["ok", "note", "warning", "error"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
"""The levels from good to bad. Only an error keeps runs from working; a warning costs something in some case."""
Location = Literal["login", "job", "node", "alone"]
"""The kind of machine.

`login`: outside of all jobs of the site's scheduler; `job`: where the command runs inside of a job, whose nodes are asked themselves;
`node`: a node of that job; `alone`: a machine on which runs are started without a scheduler.
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report. `nodes`: where it was found, empty for the machine on which the command runs."""

    subject: str
    level: Level
    text: str
    advice: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Context:
    """The site, and the machine that is compared with it."""

    site: Site
    place: Location
    hostname: str
    scheduler: str
    """The scheduler of this job, else the one whose commands are here, or `local`."""
    job_id: str | None = None
    nodes: tuple[str, ...] = ()
    """The nodes of the job, by the scheduler's names."""
    token_file: str = ""
    """A file on storage that another machine has just made, with `token` in it; only for a node."""
    token: str = ""

    @property
    def runs_here(self) -> bool:
        return self.place in ("node", "alone")

    def describe(self) -> str:
        if self.job_id is not None:
            nodes = f" on {', '.join(self.nodes[:8])}{' ...' if len(self.nodes) > 8 else ''}" if self.nodes else ""
            return f"on {self.hostname}, inside job {self.job_id} of {self.scheduler}{nodes}"
        if self.place == "login":
            return f"on {self.hostname}, outside of any allocation of {self.site.scheduler}"
        return f"on {self.hostname}, where runs are started"


@dataclass(frozen=True)
class Check:
    """A function of a context that returns findings, the places where it is called, and how long it may take."""

    subject: str
    function: Callable[[Context], Iterable[Finding]]
    places: tuple[Location, ...]
    timeout_s: float = 20.0


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value for a key of a site file. `why` becomes its comment; `sure` is False if the value is a guess."""

    value: str | int | None
    why: str
    sure: bool = True


def query(server: Server, *argv: str) -> str:
    """Query a scheduler's server with little patience. Raises SchedulerSilent, SchedulerOutputError."""
    return ask(server, argv, QUICK_ANSWER_S, QUICK_ANSWER_S)


def mib(num_bytes: int) -> str:
    """Format a size for a site file."""
    return f"{max(1, num_bytes >> 20)}MiB"


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level among the findings; `ok` where there are none."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Merge the same finding of several nodes into one that names all of them, in their order."""
    found: dict[Finding, list[str]] = {}
    for finding in findings:
        found.setdefault(replace(finding, nodes=()), []).extend(finding.nodes)
    return tuple(replace(finding, nodes=tuple(dict.fromkeys(nodes))) for finding, nodes in found.items())


def by_subject(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """Group findings by subject, the worst last, since the end stays visible on a terminal."""
    subjects = list(dict.fromkeys(finding.subject for finding in findings))
    groups = [(subject, [finding for finding in findings if finding.subject == subject]) for subject in subjects]
    ordered = [(subject, sorted(group, key=lambda finding: LEVELS.index(finding.level))) for subject, group in groups]
    return sorted(ordered, key=lambda pair: LEVELS.index(worst(pair[1])))
