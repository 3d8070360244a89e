"""munged, slurmctld and the slurmds of one cluster."""

import os
import secrets
import signal
import time

from tests.minicluster import processes, slurmconf
from tests.minicluster.daemons import await_states, command, start
from tests.minicluster.spec import ClusterError, Spec
from tests.minicluster.waiting import last_lines, wait_until

CONTROLLER = ("slurmctld", "slurmscriptd")
USABLE = ("idle", "mixed", "allocated", "completing")


def prepare(spec: Spec) -> None:
    for path in (spec.root / "spool" / "slurmctld", spec.slurm_conf.parent):
        path.mkdir(parents=True)
    spec.slurm_conf.write_text(slurmconf.slurm_conf(spec))
    (spec.slurm_conf.parent / "gres.conf").write_text(slurmconf.gres_conf(spec))
    (spec.slurm_conf.parent / "cgroup.conf").write_text(slurmconf.cgroup_conf())


def start_head(spec: Spec) -> None:
    """What runs on the login node. After `cut` all of it runs still."""
    if processes.named(spec, "login", ("munged",)):
        return
    start_munged(spec)
    start_controller(spec)


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


def start_controller(spec: Spec) -> None:
    start(spec, "login", ["slurmctld"], "slurmctld")


def start_node(spec: Spec, host: str) -> None:
    start(spec, host, ["slurmd", "-N", host], f"slurmd-{host}")


def node_states(spec: Spec) -> dict[str, str]:
    """As sinfo says; '*' at the end: does not answer."""
    text = command(spec, "login", ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T"])
    return dict(line.split() for line in text.splitlines() if line.strip())


def await_usable(spec: Spec, hosts: tuple[str, ...], limit_s: float) -> None:
    await_states(spec, hosts, limit_s, node_states, USABLE, last_words)


def last_words(spec: Spec, host: str) -> dict[str, str]:
    return {"slurmctld": last_lines(spec.log("slurmctld")), f"slurmd of {host}": last_lines(spec.log(f"slurmd-{host}"))}


def restart_node(spec: Spec, host: str) -> None:
    """A running slurmd too: one that starts registers at once. Steps have a process of their own and live on."""
    running = processes.named(spec, host, ("slurmd",))
    processes.send(running, signal.SIGTERM)
    wait_until(lambda: not processes.named(spec, host, ("slurmd",)), 20.0, f"slurmd of {host} ends")
    start_node(spec, host)


def resume(spec: Spec, host: str) -> None:
    """Out of DOWN or DRAIN; a node that is neither refuses, which is as good."""
    if node_states(spec).get(host, "").rstrip("*") not in USABLE:
        try:
            command(spec, "login", ["scontrol", "update", f"NodeName={host}", "State=RESUME"])
        except ClusterError as error:
            if "Invalid node state" not in str(error):
                raise


def save(spec: Spec, job: str) -> None:
    """Wait until slurmctld has saved its jobs. It saves up to 5 s after a change; one that is killed before forgets a job that runs, gives
    its number to the next, or starts it a second time."""
    began, state = time.time(), spec.root / "spool" / "slurmctld" / "job_state"
    command(spec, "login", ["scontrol", "update", f"JobId={job}", "Comment=saved"])
    wait_until(lambda: state.exists() and state.stat().st_mtime > began, 20.0, "slurmctld saves its jobs")
