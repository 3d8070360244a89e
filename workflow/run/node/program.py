"""Run the node program: one per node of an allocation, `python -m workflow.run.node --supervisor HOST:PORT --node INDEX`.

It does on its node what the supervisor says over the socket: stage, start the ranks, stop them, push, release. It is the parent of all
that runs there. When the supervisor goes away, or a signal comes, it ends everything by itself. The token comes on standard input.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from base import logs, process
from base.errors import NodeLost, SlipwayError
from cluster import machine
from cluster.schedulers.inside_job import read_grant
from cluster.types import DEVICES, Grant
from workflow.run.link import commands, event_loop, reports
from workflow.run.link.protocol import Channel, ProtocolError, connect, name_of
from workflow.run.node import limits, node_work, preparation
from workflow.run.plan import TAG

# The token of the run, which the supervisor sends over standard input.


def read_token(descriptor: int, limit_s: float) -> bytes:
    """Read the first line of `descriptor`, which a launcher or a job that has ended may hold open for ever. Raises NodeLost."""
    try:
        line = process.first_line(descriptor, limit_s)
    except TimeoutError as error:
        raise NodeLost(
            f"nobody has handed this node program the run's token within {limit_s:g} s: its launcher or its job has ended"
        ) from error
    try:
        token = bytes.fromhex(line.removesuffix(b"\n").decode("ascii"))
    except ValueError as error:
        raise NodeLost("what this node program was handed on its standard input is no token of a run") from error
    if not token:
        raise NodeLost("the standard input of this node program has ended without the run's token: its launcher or its job has ended")
    return token


logger = logging.getLogger(__name__)

LOG_BYTES: Final = 1 << 20

_ERRORS: Final[Mapping[type[commands.Message], str]] = {
    commands.Listen: "NodeLost",
    commands.Plan: "AllocationError",
    commands.Start: "ContainerError",
}
"""What an error of the operating system means, by the command that met it."""


class NodeProgram:
    """The node program of one supervisor: it hears its commands, has NodeWork obey them, and ends all when it is gone."""

    def __init__(self, connection: socket.socket, index: int, token: bytes, log: "_LogLines", grant: Callable[[], Grant | None]) -> None:
        self.loop = event_loop.Loop()
        self.work = node_work.NodeWork(self.loop, index, token, self.report, log.text)
        self.exit_code: int | None = None
        self._grant = grant
        """Finds out what this node was granted."""
        self._heard = time.monotonic()
        self._lost_it = False
        self.channel = Channel[commands.Command](self.loop, connection, commands.Command, self._obey_all, self._lost)

    def run(self) -> int:
        """Serve until told to end, or until the supervisor is gone. Return the exit code."""
        self.loop.on_signals(self._signalled)
        self.loop.every(limits.NODE_ALIVE_EVERY_S, self._report_alive)
        try:
            grant = self._grant()
        except SlipwayError as error:
            self.work.fail("come up", type(error).__name__, str(error))
        else:
            self.report(reports.Ready(facts=msgspec.convert(machine.facts(), reports.Facts), grant=grant, pid=os.getpid()))
        self.loop.until(lambda: self.exit_code is not None)
        return self.exit_code or 0

    def report(self, message: reports.Report) -> None:
        """Tell the supervisor; nothing once it is gone."""
        self.channel.send(message)

    def _obey_all(self, orders: list[commands.Command]) -> None:
        self._heard = time.monotonic()
        for order in orders:
            self._obey(order)

    def _obey(self, order: commands.Command) -> None:
        try:
            self._do(order)
        except SlipwayError as error:
            self.work.fail(name_of(order), type(error).__name__, str(error))
        except OSError as error:
            place = f": {error.filename}" if error.filename else ""
            self.work.fail(name_of(order), _ERRORS.get(type(order), "StagingError"), f"{error.strerror or error}{place}")

    def _do(self, order: commands.Command) -> None:  # noqa: C901 - a table
        work = self.work
        match order:
            case commands.Alive():
                pass
            case commands.Listen() | commands.Reach() | commands.Measure():
                work.do_preflight(order)
            case commands.Plan():
                work.do_plan(order)
            case commands.Start():
                work.do_start(order)
            case commands.Checkpoint():
                work.do_checkpoint()
            case commands.ReportRanks():
                work.do_report_ranks()
            case commands.Stop():
                work.do_stop()
            case commands.Collect():
                work.do_collect()
            case commands.Push():
                work.do_push(order)
            case commands.Release():
                work.do_release()
            case commands.End():
                work.when_stopped(lambda: self._end(order.pending))
            case _:
                if work.preparation is not None:
                    work.preparation.obey(order)

    def _end(self, pending: commands.Pending | None) -> None:
        self.exit_code = 0
        self.work.end(pending)

    def _report_alive(self) -> None:
        self.report(reports.Alive(step=self.work.least_step(), tokens=self.work.tokens()))
        if time.monotonic() - self._heard > limits.SUPERVISOR_SILENCE_S:
            self.channel.close()
            self._lost(f"nothing heard from it for {limits.SUPERVISOR_SILENCE_S:g} s")

    def _signalled(self, number: int) -> None:
        logger.warning("got %s: ending all that runs here", signal.Signals(number).name)
        self.report(reports.Signalled(number=number))
        self.work.end_requested()

    def _lost(self, why: str) -> None:
        if self._lost_it:
            return
        self._lost_it = True
        logger.error("the supervisor is gone (%s): ending all that runs here", why)
        self.work.stop(self._leave)

    def _leave(self, _clean: bool) -> None:
        self.exit_code = NodeLost.exit_code
        self.work.release()
        self.work.end(None)


class _LogLines(logging.Handler):
    """What we log, kept for the attempt's logs/node-<i>.log."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if self._bytes < LOG_BYTES:
            self._lines.append(line)
            self._bytes += len(line)

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the node program, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.node", description="The node program of one run.")
    parser.add_argument("--supervisor", required=True, metavar="HOST:PORT")
    position = parser.add_mutually_exclusive_group(required=True)
    position.add_argument("--node", type=int, metavar="INDEX", help="the position of this node in the allocation")
    position.add_argument(
        "--nodes", metavar="VARIABLE=NAME,...", help="the variable that holds the name of this node, and the names of all nodes in order"
    )
    parser.add_argument("--device", choices=DEVICES, help="what the run computes on; GPUs are looked for unless it is the CPU")
    parser.add_argument("--interface", metavar="NAME", help="network_interface of the site")
    arguments = parser.parse_args(argv)
    logs.private_umask()
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # LSF sends it to all of a job whose time is over; the supervisor hears it
    log = _configure_log()
    host, _, port = arguments.supervisor.rpartition(":")
    supervisor = (host, int(port))
    try:
        index = arguments.node if arguments.nodes is None else position_of(arguments.nodes, os.environ)
        token = read_token(sys.stdin.fileno(), limits.TOKEN_S)
    except (OSError, NodeLost) as error:
        logger.error("%s", error)
        return NodeLost.exit_code
    process.become_subreaper()
    preparation.end_older_attempts(os.environ.get(TAG, ""))
    try:
        connection = connect(supervisor, token, index)
    except (OSError, ProtocolError) as error:
        logger.error("this node cannot talk to the supervisor at %s: %s", arguments.supervisor, error)
        return NodeLost.exit_code
    grant = partial(read_grant, os.environ, arguments.device, host, arguments.interface)
    return NodeProgram(connection, index, token, log, grant).run()


def _configure_log() -> _LogLines:
    logs.configure("node")
    root, log = logging.getLogger(), _LogLines()
    root.handlers[0].setLevel(logging.INFO)
    log.setFormatter(root.handlers[0].formatter)
    root.addHandler(log)
    root.setLevel(logging.DEBUG)
    return log


def position_of(nodes: str, environ: Mapping[str, str]) -> int:
    """Return the position of this node among `nodes`, as `--nodes` has them. Raises NodeLost."""
    variable, _, names = nodes.partition("=")
    name = environ.get(variable, "")
    if name not in names.split(","):
        raise NodeLost(f"{variable} is {name!r}, and the nodes of this run are {names}: the scheduler has started this program elsewhere")
    return names.split(",").index(name)
