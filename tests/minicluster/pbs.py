"""OpenPBS on a cluster: server, scheduler and communication daemon on the login node, a pbs_mom on every other one.

Its programs are built from source (tests/runtimes/build-openpbs.sh). Daemons start with next to no environment, as from an init script.
"""

import json
from pathlib import Path

from tests import runtimes
from tests.minicluster import pbsconf, processes
from tests.minicluster.daemons import answers, await_states, command, start
from tests.minicluster.hosts import environment, exec_argv
from tests.minicluster.spec import Spec
from tests.minicluster.waiting import last_lines, run, wait_until

CONTROLLER = ("pbs_server.bin",)
MOM = "pbs_mom"
USABLE = ("free", "job-busy", "job-exclusive")
MAKE_LIMIT_S = 180.0
ANSWER_LIMIT_S = 90.0


def prepare(spec: Spec) -> None:
    pbsconf.configuration(spec).parent.mkdir()
    pbsconf.configuration(spec).write_text(pbsconf.pbs_conf(head=False))
    pbsconf.head_configuration(spec).write_text(pbsconf.pbs_conf(head=True))


def start_head(spec: Spec) -> None:
    """After `cut` all of it runs still."""
    if processes.named(spec, "login", CONTROLLER):
        return
    sockets = "/run/postgresql"  # of the database behind the server
    command(spec, "login", ["install", "-d", "-o", "postgres", "-g", "postgres", "-m", "2775", sockets])
    home = home_of(spec, "login")
    new = not home.exists()
    if new:
        make_home(spec, "login", "server")
        command(spec, "login", [*bare(spec, head=True), program("libexec/pbs_habitat")], MAKE_LIMIT_S)
        file = home / "sched_priv" / "sched_config"
        file.write_text(pbsconf.sched_config(file.read_text()))
    start(spec, "login", [*bare(spec), program("sbin/pbs_comm")], "pbs_comm")
    start_controller(spec)
    start(spec, "login", [*bare(spec), program("sbin/pbs_sched")], "pbs_sched")
    if new:
        run(exec_argv(spec, "login", ["qmgr"], "/"), pbsconf.orders(spec), env=environment(spec))


def home_of(spec: Spec, host: str) -> Path:
    """PBS_HOME as this machine sees it."""
    return spec.node_directory(host) / "spool" / "pbs"


def program(name: str) -> str:
    return str(runtimes.openpbs() / name)


def bare(spec: Spec, *, head: bool = False) -> list[str]:
    """Before a daemon's argv: an environment that its jobs may have. `head`: for PBS's own scripts that make what a server keeps."""
    file = pbsconf.head_configuration(spec) if head else pbsconf.configuration(spec)
    path = ":".join([program("bin"), program("sbin"), pbsconf.SYSTEM_PATH])
    return ["env", "-i", f"PATH={path}", "HOME=/root", "TZ=UTC", f"PBS_CONF_FILE={file}"]


def make_home(spec: Spec, host: str, kind: str) -> None:
    """By PBS's own script, which registers no service of this machine when it is told that its configuration is there (`sameconf`)."""
    empty = [""] if kind == "server" else []  # its database's user: the usual one
    version = command(spec, host, [program("bin/qstat"), "--version"]).rpartition("=")[2].strip()
    words = [kind, version, str(runtimes.openpbs()), pbsconf.HOME, *empty, "sameconf"]
    command(spec, host, [*bare(spec), program("libexec/pbs_postinstall"), *words], MAKE_LIMIT_S)
    (home_of(spec, host) / "pbs_environment").write_text(pbsconf.job_environment(spec))


def start_controller(spec: Spec) -> None:
    start(spec, "login", [*bare(spec), program("sbin/pbs_server")], "pbs_server")
    wait_until(lambda: answers(spec, "login", "qstat", "-B"), ANSWER_LIMIT_S, "pbs_server answers")


def start_node(spec: Spec, host: str) -> None:
    home = home_of(spec, host)
    if not home.exists():
        make_home(spec, host, "execution")
        (home / "mom_priv" / "config").write_text(pbsconf.mom_config())
    start(spec, host, [*bare(spec), program("sbin/pbs_mom")], f"pbs_mom-{host}")


def await_usable(spec: Spec, hosts: tuple[str, ...], limit_s: float) -> None:
    await_states(spec, hosts, limit_s, node_states, USABLE, last_words)


def last_words(spec: Spec, host: str) -> dict[str, str]:
    """Of the newest logs; PBS writes one a day."""
    logs = {"pbs_server": home_of(spec, "login") / "server_logs", f"pbs_mom of {host}": home_of(spec, host) / "mom_logs"}
    return {daemon: last_lines(max(directory.glob("*"), default=directory)) for daemon, directory in logs.items()}


def node_states(spec: Spec) -> dict[str, str]:
    """As pbsnodes says: `free`, `job-busy`; `down` of one that does not answer."""
    return pbsconf.states(json.loads(command(spec, "login", ["pbsnodes", "-a", "-F", "json"]))["nodes"])


def restart_node(spec: Spec, host: str) -> None:
    """One that runs is left alone: a pbs_mom that starts again ends the jobs of its node, and its link comes back by itself."""
    if not processes.named(spec, host, (MOM,)):
        start_node(spec, host)


def resume(spec: Spec, host: str) -> None:
    """Out of the state in which an administrator, or a hook, has put the node."""
    command(spec, "login", ["pbsnodes", "-r", host])
