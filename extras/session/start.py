"""Start a session: what is refused before anything is submitted, its files on storage, its job, or its process on this machine."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from base.errors import ConfigError, StorageError
from base.jsonfile import json_text, publish_json
from base.publish import publish, publish_new
from base.units import format_duration
from cluster.holder import holder_of
from cluster.schedulers import get_scheduler, jobs_of
from cluster.schedulers.jobs import BatchJob, JobSize
from containers.engines import in_container
from extras.session.plan import session_cell, supervisor_argv
from extras.session.request import ASKED, IMAGES, LOG, STATE, TOKEN, Asked, State, session_dir
from workflow.run.storage.prepared import plain
from workflow.study.site import Site

TOKEN_BYTES: Final = 24
SUBMIT_S: Final = 600.0
MOST_PORTS: Final = 16


def refuse(asked: Asked) -> None:
    """Raise ConfigError for what cannot be done."""
    why = _why_not_here(asked, asked.site) or _why_not_program(asked)
    if why is not None:
        raise ConfigError(why)


def _why_not_here(asked: Asked, site: Site) -> str | None:
    contained = in_container(site.engine)
    if contained and asked.image is None:
        return f"the site {site.name!r} has engine {site.engine}: --image NAME says which image has the program"
    if not contained and asked.image is not None:
        return f"--image {asked.image}: the site {site.name!r} has engine bare; leave it out, or choose another --site"
    if asked.gpus > (site.gpus_per_node or asked.gpus):
        return f"--gpus {asked.gpus}: a node of the site {site.name!r} has {site.gpus_per_node}"
    if asked.gpus and site.device == "cpu":
        return f"--gpus {asked.gpus}: the site {site.name!r} says device: cpu; valid: 0"
    if site.walltime_s is not None and asked.limits.walltime_s > site.walltime_s:
        asks, most = format_duration(asked.limits.walltime_s), format_duration(site.walltime_s)
        return f"--time {asks}: the site {site.name!r} says walltime: {most}; valid: at most that"
    return None


def _why_not_program(asked: Asked) -> str | None:
    if asked.nodes > 1 and asked.kind != "run":
        words = f"slipway session run --nodes {asked.nodes} -- COMMAND"
        return f"--nodes {asked.nodes}: a {asked.kind} is one program, on one node; valid: 1, or `{words}`, which runs it on every node"
    if asked.kind == "program" and not asked.ports:
        return "a program that is reached from outside listens on ports: --ports 5000,6006; one that is not: `slipway session run`"
    wrong = any(not 1024 <= port <= 65535 for port in asked.ports)
    if wrong or len(set(asked.ports)) != len(asked.ports) or len(asked.ports) > MOST_PORTS:
        said = ",".join(map(str, asked.ports))
        return f"--ports {said}: valid: at most {MOST_PORTS} different numbers from 1024 to 65535"
    broken = next((word for word in asked.command if "\0" in word or "\n" in word), None)
    return None if broken is None else f"{broken!r}: a word of the command holds the end of a line; put longer scripts into a file"


def create(asked: Asked) -> Path:
    """Make the session's directory on storage, which only the user can enter. Raises StorageError."""
    directory = session_dir(asked.site.storage, asked.session)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)
        publish(directory / TOKEN, secrets.token_urlsafe(TOKEN_BYTES).encode(), 0o600)  # no newline: Jupyter takes the file as it is
        publish_json(directory / ASKED, plain(asked), 0o600)
    except OSError as error:
        raise StorageError(f"the session's directory {error.filename or directory} cannot be written: {error.strerror}") from error
    return directory


def pin_image(asked: Asked, directory: Path) -> None:
    """Pin the image to what its name means now, and archive it on storage. Raises SlipwayError."""
    from workflow.run.images.pin import prepare

    pinned = prepare(asked.site, [session_cell(asked, "/nowhere")], asked.site.registry_credentials)
    publish_json(directory / IMAGES, pinned.to_json())


def submit(asked: Asked, directory: Path, size: JobSize | None) -> str:
    """Submit the session, and return the job's id; on this machine the number of its process. Raises SlipwayError."""
    argv = supervisor_argv(sys.executable, str(directory))
    jobs = jobs_of(asked.site.scheduler)
    if jobs is not None and size is not None:
        log = str(directory / LOG)
        job = BatchJob(name=job_name(asked), size=size, output=log, directory=str(directory), argv=argv, setup=asked.site.setup)
        job_id = jobs.submit(job, SUBMIT_S)
        _note(directory, State(job_id=job_id, told=time.time()), f"job {job_id}", f"{jobs.CANCEL} {job_id}")
        return job_id
    get_scheduler(asked.site.scheduler)
    with (directory / LOG).open("ab") as log_file:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log_file, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True, env=os.environ
        )
    holder = holder_of(process.pid, asked.site.scheduler, str(process.pid), 0)
    _note(directory, State(job_id=str(process.pid), holder=holder, told=time.time()), f"process {process.pid}", f"kill {process.pid}")
    return str(process.pid)


def job_name(asked: Asked) -> str:
    """Return the name of the job, which no job of a study has."""
    return f"slipway-session-{asked.session}"


def _note(directory: Path, state: State, what: str, end: str) -> None:
    """Write the first state, unless the supervisor was quicker. Raises StorageError, which names what was started: nobody else knows it."""
    try:
        publish_new(directory / STATE, json_text(plain(state)))
    except OSError as error:
        raise StorageError(f"{what} was started, and {directory} does not take its number: {error.strerror}; `{end}` ends it") from error
