"""Start a session: what is refused before anything is submitted, its files on storage, its job, or its process on this machine."""

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from base.errors import ConfigError, StorageError
from base.humanize import format_duration
from base.jsonfile import json_text, plain, publish_json
from base.publish import publish, publish_new
from cluster.holder import holder_of
from cluster.schedulers import get_scheduler, jobs_of
from cluster.schedulers.jobs import BatchJob, JobSize
from containers.engines import in_container
from extras.session.plan import session_cell, supervisor_argv
from extras.session.request import IMAGES, LOG, REQUEST, STATE, TOKEN, SessionRequest, State, session_dir
from workflow.study.site import Site

TOKEN_BYTES: Final = 24
SUBMIT_S: Final = 600.0
MAX_PORTS: Final = 16


def refuse(request: SessionRequest) -> None:
    """Raise ConfigError for what cannot be done."""
    why = _why_not_here(request, request.site) or _why_not_program(request)
    if why is not None:
        raise ConfigError(why)


def _why_not_here(request: SessionRequest, site: Site) -> str | None:
    contained = in_container(site.engine)
    if contained and request.image is None:
        return f"the site {site.name!r} has engine {site.engine}: --image NAME says which image has the program"
    if not contained and request.image is not None:
        return f"--image {request.image}: the site {site.name!r} has engine bare; leave it out, or choose another --site"
    if request.gpus > (site.gpus_per_node or request.gpus):
        return f"--gpus {request.gpus}: a node of the site {site.name!r} has {site.gpus_per_node}"
    if request.gpus and site.device == "cpu":
        return f"--gpus {request.gpus}: the site {site.name!r} says device: cpu; valid: 0"
    if site.walltime_s is not None and request.limits.walltime_s > site.walltime_s:
        asks, most = format_duration(request.limits.walltime_s), format_duration(site.walltime_s)
        return f"--time {asks}: the site {site.name!r} says walltime: {most}; valid: at most that"
    return None


def _why_not_program(request: SessionRequest) -> str | None:
    if request.nodes > 1 and request.kind != "run":
        words = f"slipway session run --nodes {request.nodes} -- COMMAND"
        return f"--nodes {request.nodes}: a {request.kind} is one program, on one node; valid: 1, or `{words}`, which runs it on every node"
    if request.kind == "program" and not request.ports:
        return "a program that is reached from outside listens on ports: --ports 5000,6006; one that is not: `slipway session run`"
    wrong = any(not 1024 <= port <= 65535 for port in request.ports)
    if wrong or len(set(request.ports)) != len(request.ports) or len(request.ports) > MAX_PORTS:
        said = ",".join(map(str, request.ports))
        return f"--ports {said}: valid: at most {MAX_PORTS} different numbers from 1024 to 65535"
    broken = next((word for word in request.command if "\0" in word or "\n" in word), None)
    return None if broken is None else f"{broken!r}: a word of the command holds the end of a line; put longer scripts into a file"


def create(request: SessionRequest) -> Path:
    """Make the session's directory on storage, which only the user can enter. Raises StorageError."""
    directory = session_dir(request.site.storage, request.session)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)
        publish(directory / TOKEN, secrets.token_urlsafe(TOKEN_BYTES).encode(), 0o600)  # no newline: Jupyter takes the file as it is
        publish_json(directory / REQUEST, plain(request), 0o600)
    except OSError as error:
        raise StorageError(f"the session's directory {error.filename or directory} cannot be written: {error.strerror}") from error
    return directory


def pin_image(request: SessionRequest, directory: Path) -> None:
    """Pin the image to what its name means now, and archive it on storage. Raises SlipwayError."""
    from workflow.run.images import prepare

    pinned = prepare(request.site, [session_cell(request, "/nowhere")], request.site.registry_credentials)
    publish_json(directory / IMAGES, pinned)


def submit(request: SessionRequest, directory: Path, size: JobSize | None) -> str:
    """Submit the session, and return the job's id; on this machine the number of its process. Raises SlipwayError."""
    argv = supervisor_argv(sys.executable, str(directory))
    jobs = jobs_of(request.site.scheduler)
    if jobs is not None and size is not None:
        log = str(directory / LOG)
        job = BatchJob(name=job_name(request), size=size, output=log, directory=str(directory), argv=argv, setup=request.site.setup)
        job_id = jobs.submit(job, SUBMIT_S)
        _note(directory, State(job_id=job_id, told=time.time()), f"job {job_id}", f"{jobs.SERVER.cancel} {job_id}")
        return job_id
    get_scheduler(request.site.scheduler)
    with (directory / LOG).open("ab") as log_file:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log_file, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True, env=os.environ
        )
    holder = holder_of(process.pid, request.site.scheduler, str(process.pid), 0)
    _note(directory, State(job_id=str(process.pid), holder=holder, told=time.time()), f"process {process.pid}", f"kill {process.pid}")
    return str(process.pid)


def job_name(request: SessionRequest) -> str:
    """Return the name of the job, which no job of a study has."""
    return f"slipway-session-{request.session}"


def _note(directory: Path, state: State, what: str, end: str) -> None:
    """Write the first state, unless the supervisor was quicker. Raises StorageError, which names what was started: nobody else knows it."""
    try:
        publish_new(directory / STATE, json_text(plain(state)))
    except OSError as error:
        raise StorageError(
            f"{what} was started, but its id cannot be written into {directory}: {error.strerror}; end it with `{end}`, then try again"
        ) from error
