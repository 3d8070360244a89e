"""OpenLava, which speaks like LSF, on a cluster: lim, res and sbatchd on every host; that of the login node starts mbatchd.

Its programs are built from source (tests/runtimes/build-openlava.sh). Daemons start with next to no environment, as from an init script.
"""

import shutil

from tests import runtimes
from tests.minicluster import lsfconf, processes
from tests.minicluster.daemons import answers, await_states, command, start
from tests.minicluster.spec import Spec
from tests.minicluster.waiting import last_lines, wait_until

CONTROLLER = ("mbatchd", "sbatchd")
"""sbatchd starts an mbatchd again that has gone."""
DAEMONS = ("lim", "res", "sbatchd")
USABLE = ("ok", "closed_Full", "closed_Excl")
ANSWER_LIMIT_S = 90.0


def prepare(spec: Spec) -> None:
    work = [lsfconf.place(spec) / name for name in ("work/logdir", "work/info", "log")]
    for path, text in lsfconf.files(spec).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in work:
        path.mkdir(parents=True)
    for path in (lsfconf.place(spec) / "work", *work):
        shutil.chown(path, lsfconf.ADMINISTRATOR, lsfconf.ADMINISTRATOR)


def start_head(spec: Spec) -> None:
    """After `cut` all of it runs still."""
    if processes.named(spec, "login", CONTROLLER):
        return
    for daemon in DAEMONS[:2]:
        begin(spec, "login", daemon)
    start_controller(spec)


def begin(spec: Spec, host: str, daemon: str) -> None:
    programs = runtimes.openlava()
    words = {
        "PATH": f"{programs}/bin:{programs}/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "TZ": "UTC",
        "LSF_ENVDIR": lsfconf.etc(spec, head=host == "login"),
        "LSF_SERVERDIR": programs / "sbin",
    }
    bare = ["env", "-i", *(f"{name}={value}" for name, value in words.items())]
    start(spec, host, [*bare, str(programs / "sbin" / daemon)], f"{daemon}-{host}")


def start_controller(spec: Spec) -> None:
    begin(spec, "login", "sbatchd")
    wait_until(
        lambda: answers(spec, "login", "bqueues", limit_s=10.0),
        ANSWER_LIMIT_S,
        f"mbatchd answers; its last lines:\n{words_of(spec, 'mbatchd', 'login')}",
    )


def words_of(spec: Spec, daemon: str, host: str) -> str:
    return last_lines(lsfconf.place(spec) / "log" / f"{daemon}.log.{host}")


def start_node(spec: Spec, host: str) -> None:
    """The others ask its lim who is master, and come again seconds later where it does not know."""
    for daemon in DAEMONS:
        if not processes.named(spec, host, (daemon,)):
            begin(spec, host, daemon)
        if daemon == "lim":
            wait_until(lambda: answers(spec, host, "lsid", limit_s=10.0), ANSWER_LIMIT_S, f"lim of {host} knows its master")


restart_node = start_node
"""Those that run are left alone: their links come back by themselves."""


def resume(spec: Spec, host: str) -> None:
    """It holds nothing against a node that was away."""


def await_usable(spec: Spec, hosts: tuple[str, ...], limit_s: float) -> None:
    await_states(spec, hosts, limit_s, node_states, USABLE, last_words)


def last_words(spec: Spec, host: str) -> dict[str, str]:
    logs = (("mbatchd", "login"), ("lim", "login"), ("sbatchd", host), ("lim", host))
    return {f"{daemon} of {where}": words_of(spec, daemon, where) for daemon, where in logs}


def node_states(spec: Spec) -> dict[str, str]:
    """As bhosts says: `ok`, `closed_Full`; `unreach` and `unavail` of one that does not answer."""
    states = lsfconf.states(command(spec, "login", ["bhosts", "-w"]))
    return {host: state for host, state in states.items() if host in spec.compute_nodes}
