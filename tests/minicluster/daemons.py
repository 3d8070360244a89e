"""How a daemon or a command is started on a host, with its last words where it does not start."""

import contextlib
import signal
import subprocess
from collections.abc import Callable

from tests.minicluster import processes
from tests.minicluster.hosts import environment, exec_argv
from tests.minicluster.spec import ClusterError, Spec
from tests.minicluster.waiting import last_lines, run, wait_until

START_LIMIT_S = 60.0
END_LIMIT_S = 60.0
SIGNALS = {"stop": signal.SIGSTOP, "cont": signal.SIGCONT, "kill": signal.SIGKILL, "restart": signal.SIGTERM}


def command(spec: Spec, host: str, argv: list[str], limit_s: float = 60.0) -> str:
    """What `argv` prints on `host`; ClusterError when it fails."""
    return run(exec_argv(spec, host, argv, "/"), limit_s=limit_s, env=environment(spec))


def start(spec: Spec, host: str, argv: list[str], daemon: str) -> None:
    """Daemons go to the background by themselves when they have read their configuration."""
    code: int | None = None
    with spec.log(f"{daemon}-start").open("ab") as log, contextlib.suppress(subprocess.TimeoutExpired):
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        code = subprocess.run(
            exec_argv(spec, host, argv, "/"), **streams, env=environment(spec), cwd="/", check=False, timeout=START_LIMIT_S
        ).returncode
    if code != 0:
        words = last_lines(spec.log(f"{daemon}-start"), 5) + "\n" + last_lines(spec.log(daemon))
        raise ClusterError(f"{daemon} did not start on {host}, its last lines:\n{words}")


def answers(spec: Spec, host: str, *argv: str, limit_s: float = 60.0) -> bool:
    try:
        command(spec, host, list(argv), limit_s)
    except ClusterError:
        return False
    return True


def control(spec: Spec, host: str, what: str, names: tuple[str, ...], begin: Callable[[], None]) -> None:
    """stop, cont, kill, start or restart the processes of these names; `begin` starts them."""
    pids = processes.named(spec, host, names)
    if what == "start" and pids:
        raise ClusterError(f"{names[0]} of {host} runs already; `cont` lets a stopped one go on")
    if what in ("stop", "cont", "kill") and not pids:
        raise ClusterError(f"{names[0]} of {host} does not run: `start` starts it")
    if what in SIGNALS:
        processes.send(pids, SIGNALS[what])
    if what in ("kill", "restart"):
        wait_until(lambda: not processes.named(spec, host, names), END_LIMIT_S, f"{names[0]} of {host} ends")
    if what in ("start", "restart"):
        begin()


def await_states(
    spec: Spec,
    hosts: tuple[str, ...],
    limit_s: float,
    states_of: Callable[[Spec], dict[str, str]],
    usable: tuple[str, ...],
    words_of: Callable[[Spec, str], dict[str, str]],
) -> None:
    """Wait until all of `hosts` have a state in `usable`. Raises ClusterError with `words_of` one that has not: its daemons' last lines."""
    states: dict[str, str] = {}

    def are_usable() -> bool:
        try:
            states.update(states_of(spec))
        except ClusterError as error:
            states.update({host: str(error) for host in hosts})
        return all(states.get(host) in usable for host in hosts)

    try:
        wait_until(are_usable, limit_s, "the nodes are usable")
    except ClusterError as error:
        bad = next(host for host in hosts if states.get(host) not in usable)
        words = "\n".join(f"{daemon}:\n{text}" for daemon, text in words_of(spec, bad).items())
        raise ClusterError(f"{error}; states: {states}\n{words}") from error
