"""munged, slurmctld and the slurmds of one cluster."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess

from tests.minicluster import processes
from tests.minicluster.hosts import environment, exec_argv
from tests.minicluster.spec import ClusterError, Spec
from tests.minicluster.waiting import last_lines, run, wait_until

CONTROLLER = ("slurmctld", "slurmscriptd")
USABLE = ("idle", "mixed", "allocated", "completing")


def command(spec: Spec, host: str, argv: list[str], limit_s: float = 60.0) -> str:
    """What `argv` prints on `host`; ClusterError when it fails."""
    return run(exec_argv(spec, host, argv, "/"), limit_s=limit_s, env=environment(spec))


def start(spec: Spec, host: str, argv: list[str], daemon: str) -> None:
    """Daemons go to the background by themselves when they have read their configuration."""
    with spec.log(f"{daemon}-start").open("ab") as log:
        done = subprocess.run(
            exec_argv(spec, host, argv, "/"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(spec),
            cwd="/",
            check=False,
            timeout=60,
        )
    if done.returncode != 0:
        words = last_lines(spec.log(f"{daemon}-start"), 5) + "\n" + last_lines(spec.log(daemon))
        raise ClusterError(f"{daemon} did not start on {host}, its last lines:\n{words}")


def start_munged(spec: Spec) -> None:
    directory = spec.munge_socket.parent
    directory.mkdir(mode=0o755, exist_ok=True)
    spec.munge_socket.unlink(missing_ok=True)  # of before a power loss
    key = directory / "munge.key"
    if not key.exists():
        with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as file:
            file.write(secrets.token_bytes(128))
    argv = ["munged", f"--socket={spec.munge_socket}", f"--key-file={key}", f"--pid-file={directory}/munged.pid"]
    start(spec, "login", [*argv, f"--seed-file={directory}/seed", f"--log-file={spec.log('munged')}", "--num-threads=2"], "munged")


def start_slurmctld(spec: Spec) -> None:
    start(spec, "login", ["slurmctld"], "slurmctld")


def start_slurmd(spec: Spec, host: str) -> None:
    start(spec, host, ["slurmd", "-N", host], f"slurmd-{host}")


def node_states(spec: Spec) -> dict[str, str]:
    """As sinfo says; '*' at the end: does not answer."""
    text = command(spec, "login", ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T"])
    return dict(line.split() for line in text.splitlines() if line.strip())


def await_usable(spec: Spec, hosts: tuple[str, ...], limit_s: float) -> None:
    states: dict[str, str] = {}

    def usable() -> bool:
        try:
            states.update(node_states(spec))
        except ClusterError as error:
            states.update({host: str(error) for host in hosts})
        return all(states.get(host) in USABLE for host in hosts)

    try:
        wait_until(usable, limit_s, "the nodes are usable")
    except ClusterError as error:
        bad = next(host for host in hosts if states.get(host) not in USABLE)
        words = f"slurmctld:\n{last_lines(spec.log('slurmctld'))}\nslurmd of {bad}:\n{last_lines(spec.log(f'slurmd-{bad}'))}"
        raise ClusterError(f"{error}; states: {states}\n{words}") from error


def control(spec: Spec, what: str) -> None:
    """stop, cont, kill or start slurmctld."""
    if what == "start":
        if processes.named(spec, "login", CONTROLLER):
            raise ClusterError("slurmctld runs already; a stopped one goes on with `ctld cont`")
        start_slurmctld(spec)
        return
    pids = processes.named(spec, "login", CONTROLLER)
    if not pids:
        raise ClusterError("slurmctld does not run: `ctld start` starts it")
    processes.send(pids, {"stop": signal.SIGSTOP, "cont": signal.SIGCONT, "kill": signal.SIGKILL}[what])
    if what == "kill":
        wait_until(lambda: not processes.named(spec, "login", CONTROLLER), 10.0, "slurmctld ends")


def restart_slurmd(spec: Spec, host: str) -> None:
    """A running slurmd too: one that starts registers at once. Steps have a process of their own and live on."""
    running = processes.named(spec, host, ("slurmd",))
    processes.send(running, signal.SIGTERM)
    wait_until(lambda: not processes.named(spec, host, ("slurmd",)), 20.0, f"slurmd of {host} ends")
    start_slurmd(spec, host)


def resume(spec: Spec, host: str) -> None:
    """Out of DOWN or DRAIN; a node that is neither refuses, which is as good."""
    if node_states(spec).get(host, "").rstrip("*") not in USABLE:
        try:
            command(spec, "login", ["scontrol", "update", f"NodeName={host}", "State=RESUME"])
        except ClusterError as error:
            if "Invalid node state" not in str(error):
                raise
