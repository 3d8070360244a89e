"""python -m tests.minicluster: a cluster of a scheduler on this machine, for people and for tests. Needs root and Debian 12."""

import argparse
import os
import signal
import sys
from pathlib import Path

from tests.minicluster import registry, texts
from tests.minicluster.building import remove, remove_named
from tests.minicluster.cluster import DEFAULT_NAME, Cluster
from tests.minicluster.hosts import environment
from tests.minicluster.packages import check_rights
from tests.minicluster.schedulers import SCHEDULERS
from tests.minicluster.spec import USER, ClusterError, read_state

HOW_TO = """\
cluster {name} is up: login, {nodes}; directory {directory}
  on the login node   python -m tests.minicluster exec{option} login bash
  shared storage      {shared}
  site file           {site}
  its commands need   export {conf}   (set by exec)
  end it              python -m tests.minicluster down{option}
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tests.minicluster", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=DEFAULT_NAME, help="which cluster (%(default)s)")
    up = commands.add_parser("up", parents=[named], help="build a cluster and wait until it is usable")
    up.add_argument("--scheduler", choices=tuple(SCHEDULERS), default="slurm", help="whose daemons run on it (%(default)s)")
    up.add_argument("--dir", help="its directory (/tmp/slipway-minicluster-NAME); `down` removes it")
    for option, default, text in (
        ("nodes", 4, "compute nodes n1, n2, ..."),
        ("gpus", 8, "GPUs of a node"),
        ("cores", 8, "cores of a node, more than this machine has if need be"),
        ("memory-mb", 4000, "memory of a node"),
        ("kill-wait", 5, "seconds between SIGTERM and SIGKILL"),
        ("slurmd-timeout", 60, "seconds until a silent node is down"),
    ):
        up.add_argument(f"--{option}", type=int, default=default, help=f"{text} (%(default)s)")
    up.add_argument("--docker", action="store_true", help="a dockerd per node, podman, and stand-ins for NVIDIA's tools")
    up.add_argument("--storage-mbit", type=float, help="shared storage behind one link of this speed, for all nodes together")
    up.add_argument("--link-mbit", type=float, help="speed of each node's link, each direction")
    daemon = commands.add_parser("dockerd", parents=[named], help="what to do to a node's dockerd")
    daemon.add_argument("node")
    daemon.add_argument("what", choices=("stop", "cont", "kill", "start", "restart"))
    change = commands.add_parser("set", parents=[named], help="change link speeds while it runs")
    change.add_argument("--storage-mbit", type=float)
    change.add_argument("--link-mbit", type=float)
    change.add_argument("--node", help="the link of this node only")
    run = commands.add_parser("exec", parents=[named], help="run a command on a node")
    run.add_argument("--user", choices=(USER,), help="as the cluster's ordinary user, not as root")
    run.add_argument("node")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD...")
    for name, text in (
        ("kill", "hard power loss of a node"),
        ("cut", "pull a node's cable; its processes live on"),
        ("heal", "undo kill and cut"),
    ):
        commands.add_parser(name, parents=[named], help=text).add_argument("node")
    control = commands.add_parser("ctld", parents=[named], help="what to do to the scheduler's controller")
    control.add_argument("what", choices=("stop", "cont", "kill", "start"))
    down = commands.add_parser("down", parents=[named], help="remove a cluster, whole or in parts, and its directory")
    down.add_argument("--all", action="store_true", help="every cluster of this machine")
    down.add_argument("--dir", type=Path, help="the cluster with this directory, where its name is lost")
    commands.add_parser("list", help="clusters of this machine")
    commands.add_parser("site", parents=[named], help="path of the site file")
    return top


def up(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that it cleans up, as for Ctrl-C
    sizes = ("nodes", "gpus", "cores", "memory_mb", "kill_wait", "slurmd_timeout", "storage_mbit", "link_mbit")
    numbers = ("scheduler", "docker", *sizes)
    cluster = Cluster.up(options.name, options.dir, **{field: getattr(options, field) for field in numbers})
    option = "" if options.name == DEFAULT_NAME else f" --name {options.name}"
    words = " ".join(f"{name}={value}" for name, value in texts.environ(cluster.spec).items())
    facts = {"directory": cluster.spec.root, "shared": cluster.shared, "site": cluster.site_file, "conf": words}
    say(HOW_TO.format(name=cluster.name, nodes=", ".join(cluster.nodes), option=option, **facts))


def down(options: argparse.Namespace) -> None:
    check_rights()
    if options.dir:
        remove(read_state(options.dir))
        return
    if not options.all and options.name not in registry.names():
        sys.stderr.write(f"no cluster {options.name!r} is up\n")
        return
    for name in registry.names() if options.all else [options.name]:
        remove_named(name)


def execute(options: argparse.Namespace) -> None:
    """Become the command: its input, output, signals and exit code are the caller's."""
    cluster = Cluster.open(options.name)
    words = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    argv = cluster.argv(options.node, words or ["bash"], user=options.user)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored stays so in the command
    os.execve(argv[0], argv, environment(cluster.spec, user=options.user))


def say(text: str) -> None:
    sys.stdout.write(text)


def act(options: argparse.Namespace) -> None:
    match options.command:
        case "up":
            up(options)
        case "down":
            down(options)
        case "list":
            say("".join(f"{name}\t{registry.begun_directory_of(name) or '(up was killed: take it down)'}\n" for name in registry.names()))
        case "site":
            say(f"{Cluster.open(options.name).site_file}\n")
        case "exec":
            execute(options)
        case "ctld":
            Cluster.open(options.name).ctld(options.what)
        case "dockerd":
            Cluster.open(options.name).dockerd(options.node, options.what)
        case "set":
            Cluster.open(options.name).set_bandwidth(options.storage_mbit, options.link_mbit, options.node)
        case command:
            cluster = Cluster.open(options.name)
            {"kill": cluster.kill, "cut": cluster.cut, "heal": cluster.heal}[command](options.node)


def main() -> int:
    try:
        act(parser().parse_args())
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
