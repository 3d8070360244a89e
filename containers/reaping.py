"""Remove containers of ours whose job is gone. It reads our labels and asks the scheduler; a container that it is not sure about stays.

Usable at every start of a node program, by hand, and in an epilog: `slipway reap --remove`.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, TypedDict

from base import process, sanitize, typed
from base.errors import ContainerError, RecordError
from cluster.schedulers import SCHEDULERS, get_scheduler
from cluster.types import Holder, is_job_id
from containers.engines import STORES, container_start, docker_podman
from containers.limits import HOLDERS_S
from containers.spec import HOLDER, JOB, TAG, USER

FORMAT: Final = '{"id": {{json .ID}}, "name": {{json .Name}}, "labels": {{json .Config.Labels}}}'


ContainerId = Annotated[str, typed.Check("the id of a container", lambda value: re.fullmatch(r"[0-9a-f]{1,64}", value) is not None)]


@dataclass(frozen=True, kw_only=True)
class LabelledContainer:
    """A container with our labels."""

    engine: str
    id: str
    name: str
    labels: tuple[tuple[str, str], ...]

    def label(self, name: str) -> str:
        """Return the label; empty where it has none of that name."""
        return dict(self.labels).get(name, "")


class _Inspected(TypedDict):
    id: ContainerId
    name: str
    labels: dict[str, str] | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is to be done with one container, and why."""

    container: LabelledContainer
    remove: bool
    reason: str
    stuck: bool = False
    """True if its removal was tried in vain."""


Alive = Callable[[Sequence[LabelledContainer]], Sequence[bool | None]]


def plan_reap(
    containers: Iterable[LabelledContainer], alive: Alive, uid: int, older: Callable[[str], bool] = lambda _tag: False
) -> tuple[Decision, ...]:
    """Plan the reaping. Pure but for `alive`: whether the jobs of containers live, None if that cannot be known; it is asked once, for
    those that it decides about. `older`: tags of earlier attempts of a run that we hold the lease of, so that whoever holds them is dead
    whatever their job does."""
    found = [(container, _decide(container, uid, older)) for container in containers]
    open_ = [container for container, decision in found if decision is None]
    lives = dict(zip((container.id for container in open_), alive(open_), strict=True)) if open_ else {}
    return tuple(decision or _by_job(container, lives[container.id]) for container, decision in found)


def _decide(container: LabelledContainer, uid: int, older: Callable[[str], bool]) -> Decision | None:
    job, tag = container.label(JOB), container.label(TAG)
    if container.label(USER) != str(uid):
        return Decision(container=container, remove=False, reason=f"of uid {container.label(USER) or '?'}, not ours")
    if not tag or job.count(":") < 2:
        return Decision(container=container, remove=False, reason=f"{JOB} is {job!r}: no label that we write")
    if older(tag):
        return Decision(container=container, remove=True, reason="of an earlier attempt of a run that is ours now")
    return None


def _by_job(container: LabelledContainer, lives: bool | None) -> Decision:
    job = container.label(JOB)
    if lives is None:
        return Decision(container=container, remove=False, reason=f"whether job {job} lives cannot be told now")
    return Decision(container=container, remove=not lives, reason=f"job {job} {'lives' if lives else 'is gone'}")


def jobs_alive(containers: Sequence[LabelledContainer]) -> list[bool | None]:
    """Return whether the jobs live: by holders that would be processes in sight, or else by the schedulers of the labels, each job asked
    for once.
    """
    holders = [_holder(container) for container in containers]
    alive: dict[Holder, bool | None] = {}
    for name in sorted({holder.scheduler for holder in holders if holder is not None}):
        wanted = list(dict.fromkeys(holder for holder in holders if holder is not None and holder.scheduler == name))
        alive |= zip(wanted, get_scheduler(name).holders_alive(wanted, HOLDERS_S), strict=True)
    return [None if holder is None else alive[holder] for holder in holders]


def _holder(container: LabelledContainer) -> Holder | None:
    scheduler, _, rest = container.label(JOB).partition(":")
    job_id, _, restart = rest.rpartition(":")
    count = sanitize.ascii_int(restart)
    if scheduler not in SCHEDULERS or count is None or not is_job_id(job_id):
        return None
    try:
        holder = typed.json_as(Holder, container.label(HOLDER), HOLDER)
    except RecordError:
        unknown: dict[str, Any] = {"host": "", "pid": 0, "pid_start": 0, "boot_id": "", "pid_namespace": ""}
        holder = Holder(scheduler=scheduler, job_id=job_id, restart_count=count, **unknown)
    if (holder.scheduler, holder.job_id, holder.restart_count) != (scheduler, job_id, count):
        return None
    return holder


def engines_here() -> tuple[str, ...]:
    """Return the engines whose client is on PATH."""
    return tuple(engine for engine in STORES if shutil.which(engine))


def list_argv(engine: str) -> tuple[str, ...]:
    """Return the command that lists every container that says it is one of ours, running or not."""
    return (engine, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={TAG}")


def ours(engine: str) -> tuple[LabelledContainer, ...]:
    """List the containers with our labels, whoever's. Raises ContainerError naming whom the client talks to."""
    listed = container_start.call(list_argv(engine))
    if listed.returncode:
        raise ContainerError(f"{engine}: containers cannot be listed: {process.last_lines(listed.stderr, 3)}")
    ids = listed.stdout.split()
    if not ids:
        return ()
    # One that has gone meanwhile makes the call fail, and the others are told all the same.
    told = container_start.call((engine, "inspect", "--type", "container", "--format", FORMAT, *ids))
    return parse_containers(engine, told.stdout)


def parse_containers(engine: str, text: str) -> tuple[LabelledContainer, ...]:
    """Read a line per container. Raises ContainerError."""
    try:
        told = [typed.json_as(_Inspected, line, "a container", ContainerError) for line in text.splitlines() if line.strip()]
    except ContainerError as error:
        raise ContainerError(f"{engine} inspect answered {text[:200]!r}, which is not what was asked for ({error})") from error
    return tuple(
        LabelledContainer(engine=engine, id=one["id"], name=one["name"].lstrip("/"), labels=tuple(sorted((one["labels"] or {}).items())))
        for one in told
    )


def reap_here(engine: str, older: Callable[[str], bool] = lambda _tag: False) -> tuple[Decision, ...]:
    """Remove what is to be removed on this node; all decisions, as they were carried out: one that cannot be removed stays, and says why,
    since it must not keep every later run from this node. Raises ContainerError where the engine does not answer."""
    decisions = plan_reap(ours(engine), jobs_alive, os.geteuid(), older)
    return tuple(_execute(decision) if decision.remove else decision for decision in decisions)


def _execute(decision: Decision) -> Decision:
    try:
        remove(decision.container)
    except ContainerError as error:
        return replace(decision, remove=False, reason=f"{decision.reason}, and it could not be removed: {error}", stuck=True)
    return decision


def remove(container: LabelledContainer) -> None:
    """Remove a container by its id, which nobody else's container has. Raises ContainerError naming it."""
    find = (container.engine, "ps", "--all", "--quiet", "--filter", f"id={container.id}")
    container_start.remove_container(container.name, find, docker_podman.remove_argv(container.engine, container.id))
