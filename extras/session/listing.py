"""Tell the state of sessions: the last one that their supervisors wrote, compared with what their scheduler knows."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from base.publish import remove_tree
from cluster.schedulers import SCHEDULERS, Jobs, holder_alive
from extras.session.request import TOKEN, SessionRequest, State, all_sessions, read_request, read_state

GONE_S: Final = 60.0
"""How old the last word of a session must be before it counts as gone where its job is not in the queue: jobs show up late."""


@dataclass(frozen=True, kw_only=True)
class Seen:
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


def read_session(directory: Path) -> Seen:
    """Return a session as its supervisor wrote last; nobody else is asked. Raises RecordError."""
    return Seen(directory=directory, request=read_request(directory), state=read_state(directory))


def look(directory: Path, queued: Collection[str] | None, now: float) -> Seen:
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


def queued_ids(jobs: Jobs | None, patience_s: float, timeout_s: float) -> frozenset[str] | None:
    """Return the ids of our jobs that are not over. Raises SchedulerSilent."""
    return None if jobs is None else frozenset(job.job_id for job in jobs.our_jobs(patience_s, timeout_s))


def sessions(storage: Path, queued: Collection[str] | None) -> list[Seen]:
    """Return all sessions, the oldest first."""
    now = time.time()
    return [look(directory, queued, now) for directory in all_sessions(storage)]


def clean(seen: Seen) -> None:
    """Remove what a session that has ended has left on storage. What was pushed stays, with its log, and the place for what its nodes
    may still hold."""
    (seen.directory / TOKEN).unlink(missing_ok=True)
    if not seen.request.push:
        remove_tree(seen.directory)
