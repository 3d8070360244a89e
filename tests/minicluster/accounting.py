"""slurmdbd and a MariaDB of the cluster's own, on the login node. Its socket is the usual one: the login node's /run is its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.minicluster import daemons, processes
from tests.minicluster.slurmconf import slurmdbd_conf
from tests.minicluster.spec import ClusterError, Spec
from tests.minicluster.waiting import last_lines, wait_until

SOCKET = "/run/mysqld/mysqld.sock"
ACCOUNT = "demo"
INSTALL_LIMIT_S = 120.0
START_LIMIT_S = 60.0
SMALL = ("--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-log-buffer-size=1M", "--innodb-doublewrite=0")


def data_directory(spec: Spec) -> Path:
    return spec.root / "mariadb"


def make_database(spec: Spec) -> None:
    """Once per cluster."""
    directory = data_directory(spec)
    if directory.exists():
        return
    directory.mkdir()
    argv = ["mariadb-install-db", "--no-defaults", f"--datadir={directory}", "--user=root", "--auth-root-authentication-method=normal"]
    options = ["--skip-test-db", "--skip-name-resolve", *SMALL, "--innodb-flush-method=nosync"]
    daemons.command(spec, "login", [*argv, *options], INSTALL_LIMIT_S)
    conf = spec.slurm_conf.parent / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(slurmdbd_conf(spec))


def start(spec: Spec) -> None:
    """MariaDB, then slurmdbd, each until it answers."""
    make_database(spec)
    daemons.command(spec, "login", ["mkdir", "-p", str(Path(SOCKET).parent)])
    server = shutil.which("mariadbd", path="/usr/sbin:/usr/bin") or "mariadbd"
    argv = ["setsid", "--fork", server, "--no-defaults", f"--datadir={data_directory(spec)}", "--user=root", f"--socket={SOCKET}"]
    argv += ["--skip-networking", f"--pid-file={data_directory(spec)}/mariadbd.pid", f"--log-error={spec.log('mariadbd')}", *SMALL]
    daemons.start(spec, "login", [*argv, "--innodb-flush-log-at-trx-commit=2", "--performance-schema=OFF"], "mariadbd")
    await_answer(spec, ["mariadb-admin", "--no-defaults", f"--socket={SOCKET}", "ping"], "mariadbd")
    daemons.start(spec, "login", ["slurmdbd"], "slurmdbd")
    await_answer(spec, ["sacctmgr", "--noheader", "show", "cluster"], "slurmdbd")


def register(spec: Spec) -> None:
    """The cluster, and an account for root: what a site's administrator does once."""
    for words in (["cluster", spec.name], ["account", ACCOUNT], ["user", "root", f"account={ACCOUNT}"]):
        try:
            daemons.command(spec, "login", ["sacctmgr", "--immediate", "add", *words])
        except ClusterError as error:
            if "Nothing new added" not in str(error) and "already exists" not in str(error):
                raise


def await_answer(spec: Spec, argv: list[str], daemon: str) -> None:
    def answers() -> bool:
        if not processes.named(spec, "login", (daemon, "setsid")):  # mariadbd by the name of the latter until it is executed
            raise ClusterError(f"{daemon} ended: {last_lines(spec.log(daemon))}")
        try:
            daemons.command(spec, "login", argv)
        except ClusterError:
            return False
        return True

    wait_until(answers, START_LIMIT_S, f"{daemon} answers")
