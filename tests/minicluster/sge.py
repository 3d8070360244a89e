"""Grid Engine on a cluster: sge_qmaster on the login node, sge_execd on every other one, in a cell of the cluster's own.

Daemons start with next to no environment: what they have, the jobs of their nodes inherit.
"""

import shutil
import signal
from pathlib import Path

from tests.minicluster import processes, sgeconf
from tests.minicluster.daemons import answers, await_states, command, start
from tests.minicluster.spec import Spec
from tests.minicluster.waiting import last_lines, wait_until

CONTROLLER = ("sge_qmaster",)
EXECD = "sge_execd"
DEBIAN = Path("/usr/share/gridengine")
INSTALLED = Path("/var/lib/gridengine")
ADMINISTRATOR = "sgeadmin"  # the package's
SYSTEM_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
ANSWER_LIMIT_S = 60.0
USABLE = ("ok",)


def prepare(spec: Spec) -> None:
    """A cell with Debian's programs, and empty spools."""
    common = spec.sge_root / sgeconf.CELL / "common"
    common.mkdir(parents=True)
    for name in ("bin", "lib", "utilbin", "util"):
        (spec.sge_root / name).symlink_to(INSTALLED / name)
    (common / "bootstrap").write_text(sgeconf.bootstrap((DEBIAN / "default-bootstrap").read_text(), spec))
    (common / "act_qmaster").write_text("login\n")
    for name in ("qmaster/job_scripts", "spooldb", "execd"):
        (spec.root / "spool" / name).mkdir(parents=True)
    for directory in (spec.sge_root / sgeconf.CELL, spec.root / "spool"):
        for path in (directory, *directory.rglob("*")):
            shutil.chown(path, ADMINISTRATOR, ADMINISTRATOR)


def start_head(spec: Spec) -> None:
    if processes.named(spec, "login", CONTROLLER):
        return
    new = not any((spec.root / "spool" / "spooldb").iterdir())
    if new:
        become = ["setpriv", f"--reuid={ADMINISTRATOR}", f"--regid={ADMINISTRATOR}", "--clear-groups", *bare(spec)]
        places = [str(spec.sge_root), sgeconf.CELL, str(spec.root / "spool" / "spooldb"), ADMINISTRATOR]
        command(spec, "login", [*become, "sh", str(DEBIAN / "scripts" / "init_cluster"), *places])
        command(spec, "login", [*become, "/usr/lib/gridengine/spooldefaults", "managers", "root"])
    start_controller(spec)
    if new:
        configure(spec)


def bare(spec: Spec) -> list[str]:
    """Before a daemon's argv: an environment that its jobs may have."""
    return ["env", "-i", SYSTEM_PATH, "HOME=/root", *(f"{name}={value}" for name, value in sgeconf.environ(spec).items())]


def start_controller(spec: Spec) -> None:
    start(spec, "login", [*bare(spec), "sge_qmaster"], "qmaster")
    wait_until(
        lambda: answers(spec, "login", "qconf", "-sconf"),
        ANSWER_LIMIT_S,
        f"sge_qmaster answers; its last lines:\n{last_lines(messages(spec))}",
    )


def messages(spec: Spec, host: str | None = None) -> Path:
    """Where qmaster, or the execd of `host`, writes what it has to say."""
    return spec.root / "spool" / ("qmaster" if host is None else f"execd/{host}") / "messages"


def qconf(spec: Spec, *arguments: str) -> str:
    return command(spec, "login", ["qconf", *arguments])


def configure(spec: Spec) -> None:
    for host in spec.compute_nodes:
        qconf(spec, "-ah", host)
    qconf(spec, "-as", "login")
    give(spec, "-Ahgrp", "allhosts", sgeconf.host_group(spec))
    give(spec, "-Mc", "complexes", sgeconf.complexes(qconf(spec, "-sc")))
    for name in sgeconf.ENVIRONMENTS:
        give(spec, "-Ap", name, sgeconf.parallel_environment(name, spec))
    give(spec, "-Aq", "queue", sgeconf.queue(qconf(spec, "-sq"), spec))
    give(spec, "-Msconf", "scheduling", sgeconf.scheduling(qconf(spec, "-ssconf")))
    give(spec, "-Mconf", "global", sgeconf.configuration(qconf(spec, "-sconf"), spec))


def give(spec: Spec, option: str, name: str, text: str) -> None:
    """Hand a file to qconf, which goes by its name in the case of a configuration."""
    path = spec.root / "spool" / name
    path.write_text(text)
    qconf(spec, option, str(path))


def start_node(spec: Spec, host: str) -> None:
    start(spec, host, [*bare(spec), EXECD], f"execd-{host}")


def await_usable(spec: Spec, hosts: tuple[str, ...], limit_s: float) -> None:
    await_states(spec, hosts, limit_s, node_states, USABLE, last_words)
    for host in hosts:
        size = f"gpu={spec.gpus},slots={spec.cores}"
        if size not in qconf(spec, "-se", host):
            qconf(spec, "-rattr", "exechost", "complex_values", size, host)


def last_words(spec: Spec, host: str) -> dict[str, str]:
    return {"sge_qmaster": last_lines(messages(spec)), f"sge_execd of {host}": last_lines(messages(spec, host))}


def node_states(spec: Spec) -> dict[str, str]:
    """The letters of each node's queue; `ok`: none; `u`: the node does not answer."""
    lines = [line.split() for line in command(spec, "login", ["qstat", "-f", "-q", sgeconf.QUEUE]).splitlines()]
    found = {words[0].partition("@")[2]: words for words in lines if words and words[0].startswith(f"{sgeconf.QUEUE}@")}
    return {host: words[5] if len(words) > 5 else "ok" for host, words in found.items() if words[4] != "-NA-"}


def restart_node(spec: Spec, host: str) -> None:
    """Its jobs have shepherds of their own and live on."""
    processes.send(processes.named(spec, host, (EXECD,)), signal.SIGKILL)
    wait_until(lambda: not processes.named(spec, host, (EXECD,)), 20.0, f"{EXECD} of {host} ends")
    start_node(spec, host)


def resume(spec: Spec, host: str) -> None:
    """Out of the error state in which a job that could not start has put the queue there."""
    command(spec, "login", ["qmod", "-cq", f"{sgeconf.QUEUE}@{host}"])
