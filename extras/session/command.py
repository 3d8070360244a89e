"""Start a notebook, a shell, TensorBoard, a server or a script in an allocation for `slipway session`; show, enter and end sessions."""

import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from base.errors import ConfigError, DatasetError, PushError, RemoteError, SlipwayError, TrainingFailed
from base.humanize import format_duration, parse_duration, whole_duration
from base.logs import private_umask
from base.publish import remove_tree
from cluster.schedulers import holder_alive, jobs_of
from containers.engines import in_container
from extras.session import request as files
from extras.session import start as starting
from extras.session.plan import addresses, session_cell, site_of, sockets, tunnel_argv
from extras.session.request import Kind, SessionRequest, SessionView
from workflow.commands.chosen_study import load_chosen_study, whole_commands
from workflow.commands.dataset import check_name
from workflow.commands.options import DEFAULT_STUDY, JsonOption, SiteOption, StudyOption
from workflow.commands.watching import output
from workflow.commands.watching.output import waiting
from workflow.dag.cell_needs import requirements_of
from workflow.dag.job_plans import run_size
from workflow.dag.refusals import refuse_unreachable
from workflow.study.cell import NO_DATASET, RunLimits
from workflow.study.publishing import folder_of
from workflow.study.site import Site
from workflow.study.site_file import load_site, site_beside
from workflow.study.study import Study

# Look again and again at what tells nobody that it has changed: files on storage, the scheduler's queue.


T = TypeVar("T")

LOOK_S: Final = 1.0
"""The time between two looks."""


def looks(look: Callable[[], T], limit_s: float | None) -> Iterator[T]:
    """Yield what is seen, every LOOK_S seconds, for `limit_s`; None: for ever."""
    end = None if limit_s is None else time.monotonic() + limit_s
    while end is None or time.monotonic() < end:
        yield look()
        time.sleep(LOOK_S)


KINDS: Final[dict[str, Kind]] = {"shell": "shell", "notebook": "notebook", "tensorboard": "tensorboard", "serve": "program", "run": "run"}
"""Command -> kind of session."""
KEPT_S: Final = 86400.0
"""The seconds for which the log of an ended session is kept."""
STOP_WAIT_S: Final = 120.0
"""How long `slipway session stop` waits for a session that ends by itself."""
FIRST_LOCAL_PORT: Final = 20000
LAST_LINES: Final = 20
SSH_FAILED: Final = 255
PIECE: Final = 1 << 20
NO_TERMINAL: Final = (
    "a shell needs a terminal, and standard input is none; valid: `ssh -t HOST slipway session shell`; "
    "`slipway session shell --detach`, to be entered later by `slipway session attach`; `slipway session run -- bash SCRIPT`"
)


LoginOption = Annotated[
    str | None, typer.Option("--login", metavar="NAME", help="What your laptop calls the login node; default: its own name.")
]


def start(  # noqa: PLR0913 - its options
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The command, or more options of the program.")
    ] = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="More than one: `run` only, on each of them.")] = 1,
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="Of each node; default: 1 where the site has some.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", metavar="NAME", help="Of the study; staged, in $SLIPWAY_DATA.")] = None,
    image: Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="The container image that has the program.")] = None,
    python: Annotated[str | None, typer.Option("--python", metavar="PATH", help="The interpreter, on the nodes or in the image.")] = None,
    ports: Annotated[str | None, typer.Option("--ports", metavar="PORT,...", help="On which the program listens (`serve`).")] = None,
    time: Annotated[str, typer.Option("--time", metavar="DURATION", help="How long it may last.")] = "1h",
    idle: Annotated[str | None, typer.Option("--idle", metavar="DURATION", help="End it when nobody has used it for so long.")] = None,
    push: Annotated[bool, typer.Option("--push", help="Bring what is written in its directory to storage; `run` always does.")] = False,
    allow_shared: Annotated[bool, typer.Option("--allow-shared", help="Ports of the node itself, which its users can read.")] = False,
    logdir: Annotated[Path | None, typer.Option("--logdir", help="Of `tensorboard`; default: the study's runs, exported.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait until it answers; of `run`: until it ends.")] = False,
    login: LoginOption = None,
) -> None:
    """Start a session as a job of the site, wait until it answers, and print the line for your laptop.

    `notebook`: JupyterLab. `shell`: a shell, entered at once. `tensorboard`: TensorBoard with the runs of the study, or --logdir.
    `serve`: a program with --ports. `run`: a command, on each node; what it writes is pushed. The words after `--` are the command
    of `serve` and `run`, and more options of JupyterLab and TensorBoard.
    """
    name, kind, command = str(context.info_name), KINDS[str(context.info_name)], words or []
    _refuse_typed(name, kind, command, idle, detach)
    shows_runs = kind == "tensorboard" and logdir is None and not command
    known = load_chosen_study(study, site) if dataset is not None or shows_runs or study.is_file() else None
    here = load_site(site) if known is None else known.site
    private_umask()
    session = f"{kind}-{secrets.token_hex(3)}"
    mounts = tuple[tuple[str, str, bool], ...]()
    if kind == "tensorboard" and not command:
        place = str((logdir or files.session_dir(here.storage, session) / "tensorboard").absolute())
        command, mounts = [f"--logdir={place}"], ((place, place, False),)
    if python is not None and not in_container(here.engine) and not python.startswith("/"):
        raise ConfigError(f"--python {python}: valid: the absolute path of an interpreter that all nodes have")
    request = SessionRequest(
        session=session,
        kind=kind,
        command=tuple(command),
        ports=_ports(kind, ports),
        network="shared" if allow_shared else "own",
        site=here,
        nodes=nodes,
        gpus=gpus if gpus is not None else int(here.device == "cuda" and kind != "tensorboard"),
        dataset=dataset,
        dataset_spec={"source": NO_DATASET} if dataset is None or known is None else known.datasets[check_name(known, dataset)].to_json(),
        mounts=mounts,
        image=image,
        python=python or "python3",
        limits=RunLimits(walltime_s=_seconds("--time", time)),
        idle_s=None if idle is None else _seconds("--idle", idle),
        push=push or kind == "run",
        host=os.uname().nodename,
    )
    starting.refuse(request)
    _refuse_unbuilt(known, dataset)
    ways = f"`slipway session ls` shows how it stands, `slipway session stop {session}` ends it"
    ways = whole_commands(ways, {"study": study, "site": site})
    directory = _submit(request, known if shows_runs else None, output.notice if kind == "run" and not detach else output.line)
    if detach:
        output.line(ways)
        return
    seen = _wait(directory, ("ready", "ended"), ways) if kind != "run" else _follow(directory, ways)
    if seen.is_over:
        _say_end(seen)
        return
    if kind == "shell":
        enter(seen)
    for text in reached(seen, login):
        output.line(text)


def _refuse_typed(name: str, kind: Kind, words: Sequence[str], idle: str | None, detach: bool) -> None:
    if words and kind == "shell":
        raise ConfigError(f"a shell takes no command; `slipway session run -- {shlex.join(words)}` runs one")
    if not words and kind in ("run", "program"):
        raise ConfigError(f"slipway session {name}: no command; valid: slipway session {name} ... -- COMMAND")
    if idle is not None and kind == "run":
        raise ConfigError("--idle: nobody uses a command, so that it cannot be idle; valid: --time DURATION")
    if kind == "shell" and not detach and not os.isatty(0):
        raise ConfigError(NO_TERMINAL)


def _submit(request: SessionRequest, shown: Study | None, say: Callable[[str], None]) -> Path:
    """Write the session's files, and submit it; its directory. `shown`: the study whose runs TensorBoard shows. Raises SlipwayError."""
    jobs = jobs_of(request.site.scheduler)
    size = None if jobs is None else run_size(session_cell(request, "/"), site_of(request), request.limits.walltime_s)
    if jobs is not None and size is not None:
        refuse_unreachable(request.site, os.environ)
    directory = starting.create(request)
    try:
        if shown is not None:
            _export(shown, Path(request.mounts[0][0]))
        if in_container(request.site.engine):
            with waiting("image: pinning and archiving"):
                starting.pin_image(request, directory)
        job_id = starting.submit(request, directory, size)
    except BaseException:  # a job that was submitted nevertheless ends at once: its directory is gone
        with contextlib.suppress(OSError):
            remove_tree(directory)
        raise
    # what a command prints is its own
    say(f"session {request.session}: job {job_id}" if jobs is not None else f"session {request.session}: process {job_id} of this machine")
    return directory


def _seconds(option: str, text: str) -> float:
    try:
        found = parse_duration(text).total_seconds()
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}") from error
    if not found:
        raise ConfigError(f"{option} {text}: valid: more than nothing")
    return found


def _ports(kind: Kind, text: str | None) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in (text or "").split(",") if part)
    except ValueError as error:
        raise ConfigError(f"--ports {text}: valid: numbers with commas between, such as 5000,6006") from error
    if found and kind not in ("program", "tensorboard"):
        raise ConfigError(f"--ports: a {kind} needs none; `slipway session serve --ports ... -- COMMAND` is for programs that do")
    return found or ((6006,) if kind == "tensorboard" else ())


def _refuse_unbuilt(study: Study | None, dataset: str | None) -> None:
    if study is not None and dataset is not None and requirements_of(study, dataset).root is None:
        words = study.command("dataset", "build", dataset, "--study", str(study.path))
        raise DatasetError(f"dataset {dataset!r} of study {study.name!r} is not built; `{words}` builds it")


def _export(study: Study, to: Path) -> None:
    from extras.export import tensorboard
    from extras.export.runs import exported_runs

    to.mkdir(parents=True)
    runs = list(exported_runs(study.results_dir))
    num_files = tensorboard.export(runs, to)
    output.line(f"TensorBoard shows {num_files} of {len(study.runs)} runs of {study.name}, as they are now")


def _wait(directory: Path, stages: Sequence[str], ways: str) -> SessionView:
    """Wait until the session is in one of these stages, or ended, as where its job is gone. Ctrl-C leaves it running."""
    queue = Queue()
    try:
        with waiting(f"session {directory.name}") as tell:
            for seen in looks(partial(queue.look, directory), None):
                job = f"job {seen.state.job_id}" if seen.state.job_id else "its job"
                tell({"waits": f"waits for {job} to start"}.get(seen.state.stage, seen.state.stage))
                if seen.state.stage in (*stages, "ended"):
                    return seen
    except KeyboardInterrupt:
        output.line(f"\nthe session goes on: {ways}")
        raise
    raise AssertionError("looks without a limit do not end")


def _follow(directory: Path, ways: str) -> SessionView:
    seen, queue, size = _wait(directory, ("ready", "ended"), ways), Queue(), 0
    try:
        for seen in looks(partial(queue.look, directory), None):
            size += _show_output(directory / files.OUTPUT, size)
            if seen.is_over:
                break
    except KeyboardInterrupt:
        output.notice(f"the session goes on: {ways}")
        raise
    return seen


def _show_output(path: Path, start: int) -> int:
    """Print the file from byte `start` on. Return the number of bytes."""
    if not path.is_file():
        return 0
    count = 0
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(PIECE):
            count += len(piece)
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    return count


class Queue:
    """A session whose files are read at each look, and whose scheduler is queried now and then."""

    def __init__(self) -> None:
        self._queried = time.monotonic()

    def look(self, directory: Path) -> SessionView:
        seen = files.read_session(directory)
        jobs = jobs_of(seen.request.site.scheduler)
        if seen.is_over or (jobs is not None and time.monotonic() - self._queried < files.QUEUE_PATIENCE_S):
            return seen
        queued = files.queued_ids(jobs) if seen.state.stage == "waits" else None
        seen = files.look(directory, queued, time.time())
        self._queried = time.monotonic()
        return seen


def _say_end(seen: SessionView) -> None:
    """Print how the session ended. A command that failed ends ours with its code, one that was ended early with that of the class.
    Raises TrainingFailed where another program failed, or something else, PushError where its files wait."""
    state = seen.state
    words = f"session {seen.request.session} has ended: {state.reason}"
    if state.pushed is not None:
        words += f"\nwhat it wrote: {state.pushed}"
    is_command = seen.request.kind == "run"
    if is_command and state.program_code and not state.waits_on_nodes:
        output.notice(words)
        raise SystemExit(state.program_code)
    if not state.exit_code and state.exit_code is not None:
        (output.notice if is_command else output.line)(words)
        return
    log = seen.directory / files.LOG
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log.is_file() else []
    kind = PushError if state.waits_on_nodes else TrainingFailed
    raise kind("\n".join([words, f"the end of {log}:", *lines]))


def reached(seen: SessionView, login: str | None) -> list[str]:
    """Return the line to type on the laptop, then what to open there, with the session's token."""
    request, state = seen.request, seen.state
    if state.directory is None or state.node is None or request.kind == "run":
        return []
    left = [] if state.deadline is None else [f"it ends in {whole_duration(max(1.0, state.deadline - time.time()))}"]
    if request.kind == "shell":
        return [f"enter it: slipway session attach {request.session}", *left]
    first = FIRST_LOCAL_PORT + int(request.session.rpartition("-")[2], 16) % FIRST_LOCAL_PORT
    paths = sockets(request, state.directory)
    ports = [first + index for index in range(len(paths))]
    tunnel = shlex.join(tunnel_argv(list(zip(ports, paths, strict=True)), *_way_to(request, state.node, login)))
    return [f"on your laptop: {tunnel}", *(f"then open:      {one}" for one in addresses(request, ports, seen.token or "TOKEN")), *left]


def _way_to(request: SessionRequest, node: str, login: str | None) -> tuple[str, str | None]:
    """Return the node as the laptop reaches it, and the login node before it. Of the machine itself, `login` is its name on the laptop.
    The user of `login` is the node's too."""
    if jobs_of(request.site.scheduler) is None:
        return login or node, None
    through = login or request.host
    user, at, _ = through.rpartition("@")
    return f"{user}{at}{node}", through


def enter(seen: SessionView) -> NoReturn:
    """Open a terminal at a shell of the session, and end with the shell's code."""
    from extras.session.attach import attach

    node, directory = seen.state.node, seen.state.directory
    if node is None or directory is None or seen.request.kind != "shell":
        raise ConfigError(f"{seen.request.session} is a {seen.request.kind}, and no shell; `slipway session ls` shows how it is reached")
    if node == os.uname().nodename:
        raise SystemExit(attach(Path(directory)))
    remote = shlex.join([sys.executable, "-P", "-m", "extras.session.attach", directory])
    argv = ["ssh", "-t", node, f"cd {shlex.quote(str(Path.cwd()))} 2>/dev/null; exec {remote}"]
    code = subprocess.run(argv, check=False).returncode
    if code == SSH_FAILED and not files.read_session(seen.directory).is_over:
        raise RemoteError(_not_reached(seen, node, remote))
    raise SystemExit(code)


def _not_reached(seen: SessionView, node: str, remote: str) -> str:
    jobs, name = jobs_of(seen.request.site.scheduler), seen.request.session
    words = "" if jobs is None or seen.state.job_id is None else jobs.SERVER.enter.format(job=seen.state.job_id, node=node)
    other = f"`{words} {remote}` enters it without ssh; " if words else ""
    return (
        f"ssh does not reach {node}, or its line was cut; the session {name} goes on there and holds what its job was granted. {other}"
        f"`slipway session attach {name}` tries again, `slipway session stop {name}` ends it"
    )


def _site_of(study: Path, site: str | None) -> Site:
    """Load the site whose storage has the sessions: of a session with a study it is that study's."""
    if not study.is_file():
        return load_site(site)
    beside = site_beside(study, site, os.environ)
    return load_site(site if beside is None else str(beside.absolute()), folder=folder_of(Path(os.path.abspath(study))))


def ls(study: StudyOption = DEFAULT_STUDY, site: SiteOption = None, login: LoginOption = None, as_json: JsonOption = False) -> None:
    """Show your sessions on this site's storage: state, node, time left, and the line for your laptop."""
    here = _site_of(study, site)
    found = files.sessions(here.storage, files.queued_ids(jobs_of(here.scheduler)))
    if as_json:
        output.json_value([_as_json(seen) for seen in found])
    elif found:
        output.table(("session", "state", "node", "job", "time left", "not used for"), [_row(seen) for seen in found])
    else:
        output.line(f"no session on the storage of site {here.name}: {here.storage}")
    for seen in found:
        if seen.is_over:
            (seen.directory / "token").unlink(missing_ok=True)
            if time.time() - seen.state.told > KEPT_S:
                files.clean(seen)
        elif seen.state.stage == "ready" and not as_json:
            output.line(f"\n{seen.request.session}")
            for text in reached(seen, login):
                output.line(f"  {text}")


def _row(seen: SessionView) -> tuple[object, ...]:
    state = seen.state
    left = None if state.deadline is None or seen.is_over else whole_duration(max(1.0, state.deadline - time.time()))
    stage = f"ended: {state.reason}" if seen.is_over else {"waits": "waits for its job"}.get(state.stage, state.stage)
    idle = None if state.idle_s is None or seen.is_over else format_duration(state.idle_s)
    return seen.request.session, stage, state.node, state.job_id, left, idle


def _as_json(seen: SessionView) -> dict[str, object]:
    told = ("stage", "node", "job_id", "deadline", "idle_s", "reason", "exit_code", "pushed")
    return {
        "session": seen.request.session,
        "kind": seen.request.kind,
        **{name: getattr(seen.state, name) for name in told},
        "sockets": [] if seen.state.directory is None or seen.is_over else sockets(seen.request, seen.state.directory),
        "directory": str(seen.directory),
    }


def attach_to(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="As `slipway session ls` shows it.")],
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
) -> None:
    """Open a terminal at a shell of a session; several may be at one."""
    enter(_session_named(_site_of(study, site), session))


def _session_named(site: Site, session: str) -> SessionView:
    """Return the session of that name, or the only one that begins so. Raises ConfigError."""
    names = [path.name for path in files.all_sessions(site.storage)]
    chosen = [session] if session in names else [name for name in names if name.startswith(session)]
    if len(chosen) != 1:
        known = ", ".join(names) or "none"
        raise ConfigError(f"{session!r} is {'no session' if not chosen else 'the beginning of several'}; there are: {known}")
    return files.look(files.session_dir(site.storage, chosen[0]), None, time.time())


def stop(
    names: Annotated[list[str], typer.Argument(metavar="SESSION...", help="As `slipway session ls` shows them.")],
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    now: Annotated[bool, typer.Option("--now", help="Cancel the job, instead of letting it end in order.")] = False,
) -> None:
    """End sessions: each pushes what it was asked to push, and is waited for."""
    here = _site_of(study, site)
    jobs = jobs_of(here.scheduler)
    for name in names:
        seen = _session_named(here, name)
        if seen.is_over:
            output.line(f"session {seen.request.session} has ended already: {seen.state.reason}")
            files.clean(seen)
            continue
        (seen.directory / files.STOP).touch()
        if now or seen.state.stage == "waits":
            _cancel(seen, jobs)
        if jobs is not None and seen.state.stage == "waits":
            files.clean(seen)
            output.line(f"session {seen.request.session}: it was cancelled before it had begun")
            continue
        seen = _until_ended(seen)
        output.line(f"session {seen.request.session}: {seen.state.reason}")
        if seen.state.pushed is not None:
            output.line(f"what it wrote: {seen.state.pushed}")


def _cancel(seen: SessionView, jobs: Any) -> None:
    job_id, holder = seen.state.job_id, seen.state.holder
    if jobs is not None and job_id is not None:
        jobs.cancel((job_id,), files.QUEUE_PATIENCE_S)
    elif holder is not None and holder_alive(holder):
        os.kill(holder.pid, signal.SIGTERM)


def _until_ended(seen: SessionView) -> SessionView:
    """Raise SlipwayError where the session goes on."""
    with waiting(f"session {seen.request.session} ends"):
        for last in looks(partial(Queue().look, seen.directory), STOP_WAIT_S):
            if last.is_over:
                return last
    raise SlipwayError(
        f"session {seen.request.session} has not ended within {format_duration(STOP_WAIT_S)}: it may be pushing; "
        f"`slipway session stop --now {seen.request.session}` cancels its job"
    )
