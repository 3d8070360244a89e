"""Define the request and the state of a session: two files on storage that the command and the supervisor share; and find sessions.

<storage>/sessions/<id>/   session.json (SessionRequest)   state.json (State)   token (0600)   stop (somebody wants its end)
                           images.json (what its image was pinned to)   log   output (of `run`)   files/ (what was pushed)
"""

import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, ValidationError

from base.errors import ConfigError, RecordError, SchedulerSilent
from base.humanize import is_name
from base.jsonfile import from_plain, plain, publish_json, read_json
from base.publish import remove_tree
from cluster.schedulers import SCHEDULERS, Jobs, holder_alive
from cluster.types import Holder
from workflow.study.cell import RunLimits
from workflow.study.site import Site

FOLDER: Final = "sessions"
REQUEST: Final = "session.json"
STATE: Final = "state.json"
TOKEN: Final = "token"  # noqa: S105 - the name of a file
STOP: Final = "stop"
IMAGES: Final = "images.json"
LOG: Final = "log"
OUTPUT: Final = "output"
"""What the command of `run` prints on its first node, as it comes."""
PUSHED: Final = "files"

Kind = Literal["shell", "notebook", "tensorboard", "program", "run"]
Network = Literal["own", "shared"]
Stage = Literal["waits", "staging", "starting", "ready", "ending", "ended"]


class SessionRequest(Struct, frozen=True, kw_only=True):
    """The request of a session, before it has any node."""

    session: str
    """Its id, which is the name of its directory."""
    kind: Kind
    command: tuple[str, ...] = ()
    """The whole command of `program` and `run`; for the other kinds, what is added to theirs."""
    ports: tuple[int, ...] = ()
    network: Network = "own"
    """The network of a program that listens on ports: one of its own, or the node's."""
    site: Site
    nodes: int
    gpus: int
    """Per node; 0: none."""
    dataset: str | None
    dataset_spec: dict[str, Any]
    mounts: tuple[tuple[str, str, bool], ...] = ()
    """(source, target, whether it may be written) beside the dataset."""
    image: str | None
    python: str
    limits: RunLimits
    idle_s: float | None
    push: bool
    host: str
    """The host where it was requested."""


class State(Struct, frozen=True, kw_only=True):
    """The state of a session, as its supervisor wrote last."""

    stage: Stage = "waits"
    job_id: str | None = None
    holder: Holder | None = None
    """The supervisor."""
    node: str | None = None
    """The host name of the node where the program runs."""
    directory: str | None = None
    """The directory of the sockets on that node."""
    deadline: float | None = None
    """Unix time of its end."""
    idle_s: float | None = None
    reason: str | None = None
    """Why it has ended."""
    exit_code: int | None = None
    program_code: int | None = None
    """How its program failed, as a shell has it; None where it did not, or something else has ended the session. Of a command that the end
    of its session has ended: the code of the error class."""
    pushed: str | None = None
    waits_on_nodes: bool = False
    """True if what was to be pushed is kept there, since storage did not take it."""
    told: float = 0.0
    """Unix time of what is said here."""


def sessions_dir(storage: Path) -> Path:
    """Return the directory of the sessions of a storage."""
    return storage / FOLDER


def session_dir(storage: Path, session: str) -> Path:
    """Return the directory of a session. Raises ConfigError for what is no name."""
    if not is_name(session):
        raise ConfigError(f"{session!r} is no session; `slipway session ls` shows those that there are")
    return sessions_dir(storage) / session


def write_state(directory: Path, state: State) -> None:
    """Write the state. Raises OSError."""
    publish_json(directory / STATE, plain(state), 0o600)


def read_state(directory: Path) -> State:
    """Read the state; that of a new session where there is none. Raises RecordError."""
    return _read(directory / STATE, State) if (directory / STATE).exists() else State()


def read_request(directory: Path) -> SessionRequest:
    """Read the request. Raises RecordError."""
    found: SessionRequest = _read(directory / REQUEST, SessionRequest)
    return found


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        return from_plain(read_json(path), kind)
    except (ValidationError, TypeError, ValueError) as error:
        raise RecordError(f"{path} is not what Slipway wrote there: {error}") from error


def all_sessions(storage: Path) -> Iterator[Path]:
    """Yield the directories of our own sessions, the oldest first. What others have made beside them, and links to ours, are none: where
    a session is reached stands in its files."""
    paths = sessions_dir(storage).glob(f"*/{REQUEST}")
    found = [(requested_at, path.parent) for path in paths if (requested_at := _requested_by_us(path)) is not None]
    yield from (directory for _, directory in sorted(found))


def _requested_by_us(path: Path) -> float | None:
    """Return when it was requested; None for another user's, and for one that is being removed."""
    try:
        statuses = [one.lstat() for one in (path.parent, path)]
    except FileNotFoundError:
        return None
    return statuses[1].st_mtime if all(status.st_uid == os.geteuid() for status in statuses) else None


# Tell the state of sessions: the last one that their supervisors wrote, compared with what their scheduler knows.


QUEUE_PATIENCE_S: Final = 20.0
QUEUE_ANSWER_S: Final = 10.0
GONE_S: Final = 60.0
"""How old the last word of a session must be before it counts as gone where its job is not in the queue: jobs show up late."""


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """A session and its state."""

    directory: Path
    request: SessionRequest
    state: State

    @property
    def is_over(self) -> bool:
        return self.state.stage == "ended"

    @property
    def token(self) -> str | None:
        """Return the token, or None where it is removed already."""
        try:
            return (self.directory / TOKEN).read_text().strip()
        except OSError:
            return None


def read_session(directory: Path) -> SessionView:
    """Return a session as its supervisor wrote last; nobody else is asked. Raises RecordError."""
    return SessionView(directory=directory, request=read_request(directory), state=read_state(directory))


def look(directory: Path, queued: Collection[str] | None, now: float) -> SessionView:
    """Return a session. `queued`: the ids of our jobs that are not over; None: nobody could tell. Raises RecordError."""
    seen = read_session(directory)
    state = seen.state
    if state.stage != "ended" and is_gone(state, queued, now):
        state = State(
            stage="ended",
            job_id=state.job_id,
            node=state.node,
            reason=state.reason or "its job is gone, and its supervisor said nothing: killed, or its node was lost",
            told=state.told,
        )
    return replace(seen, state=state)


def is_gone(state: State, queued: Collection[str] | None, now: float) -> bool:
    """Return True if a session has ended whose supervisor has not written its end."""
    if state.holder is not None and state.holder.scheduler in SCHEDULERS and (alive := holder_alive(state.holder)) is not None:
        return not alive
    return queued is not None and state.job_id is not None and state.job_id not in queued and now - state.told > GONE_S


def queued_ids(jobs: Jobs | None) -> frozenset[str] | None:
    """Return the ids of our jobs that are not over; None where nobody can tell."""
    try:
        return None if jobs is None else frozenset(job.job_id for job in jobs.our_jobs(QUEUE_PATIENCE_S, QUEUE_ANSWER_S))
    except SchedulerSilent:
        return None


def sessions(storage: Path, queued: Collection[str] | None) -> list[SessionView]:
    """Return all sessions, the oldest first."""
    now = time.time()
    return [look(directory, queued, now) for directory in all_sessions(storage)]


def clean(seen: SessionView) -> None:
    """Remove what a session that has ended has left on storage. What was pushed stays, with its log, and the place for what its nodes
    may still hold."""
    (seen.directory / TOKEN).unlink(missing_ok=True)
    if not seen.request.push:
        remove_tree(seen.directory)
