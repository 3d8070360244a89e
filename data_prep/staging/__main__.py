"""Stage a dataset, or with `--single` one file, in a process that prints JSON lines for the node program.

It is `python -m data_prep.staging --source DIR --cache DIR`. Its lines are {"progress": [bytes done, bytes in all]} as it goes, then
{"result": {...}} and exit 0, or {"error": [class, message]} and the exit code of its class. It ends by itself when its parent has gone.

With --peer-group other nodes stage the same dataset now. Standard input: the token in hex; later {"peers": {...}} (exchange.Others), and
{"staged_all": true} or its end. Standard output besides: {"listening": {"address", "port", "have"}}, or {"waiting": true} while somebody
else on this node stages; after the result this process goes on passing chunks to the others.
"""

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from base.errors import Cancelled, ConfigError, SlipwayError
from base.logs import configure
from base.process import raise_file_limit
from cluster.types import CacheUser
from data_prep.limits import PEER_HANG_S, PEER_LATE_S, RECHECK_S, STAGING_PROGRESS_EVERY_S
from data_prep.staging import copy, exchange
from data_prep.staging.stage import GroupStaging, StageOptions, stage

logger = logging.getLogger(__name__)


class _Progress:
    """A printer of at most two progress lines a second. Every call checks that the parent process still runs."""

    def __init__(self) -> None:
        self.parent = os.getppid()
        self.shown_at = 0.0

    def __call__(self, done: int, total: int) -> None:
        if os.getppid() != self.parent:
            raise Cancelled("the program that asked for these files has gone; the unfinished copy is kept, the next one resumes it")
        now = time.monotonic()
        if now - self.shown_at >= STAGING_PROGRESS_EVERY_S or (done == total and total > 0):
            self.shown_at = now
            say({"progress": [done, total]})


def main(argv: list[str] | None = None) -> int:
    """Stage what the arguments name and return the exit code."""
    arguments = _parser().parse_args(argv)
    configure("stage")
    raise_file_limit()  # a copy needs two per other node
    try:
        with _meeting(arguments) as group_staging:
            _stage(arguments, group_staging)
    except SlipwayError as error:
        logger.error("%s", error)
        with contextlib.suppress(Cancelled):
            say({"error": [type(error).__name__, str(error)]})
        return error.exit_code
    return 0


@contextlib.contextmanager
def _meeting(arguments: argparse.Namespace) -> Iterator[GroupStaging | None]:
    """Join the other nodes of this run, whose token is the first line on standard input."""
    if arguments.peer_group is None:
        yield None
        return
    token = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        token += byte
    index, _, nodes = arguments.peer_group.partition("/")
    try:
        peer_group = exchange.PeerGroup(
            index=int(index),
            nodes=int(nodes),
            address=arguments.address,
            token=bytes.fromhex(token.decode()),
            orders=0,
            say=say,
            hang_s=arguments.hang_s,
            late_s=arguments.late_s,
        )
    except ValueError as error:
        raise ConfigError(
            f"--peer-group {arguments.peer_group} is not INDEX/NODES, or the first line of standard input no token"
        ) from error
    with GroupStaging(peer_group) as group_staging:
        yield group_staging


def _stage(arguments: argparse.Namespace, group_staging: GroupStaging | None) -> None:
    staged = stage(
        arguments.source,
        arguments.cache,
        holder=_holder(arguments.holder),
        max_bytes=arguments.max_bytes,
        progress=_Progress(),
        options=StageOptions(
            patience_s=arguments.patience_s,
            check_s=arguments.check_s,
            group=arguments.group,
            single=arguments.single,
            group_staging=group_staging,
            copy=copy.CopyOptions(bytes_per_s=arguments.bytes_per_s, threads=arguments.threads),
        ),
    )
    say({"result": {**vars(staged), "root": str(staged.root)}})
    if group_staging is not None:
        with contextlib.suppress(Cancelled):
            group_staging.serve()


def say(value: dict[str, object]) -> None:
    """Print one whole line of JSON at once. Raises Cancelled when nobody reads it any more."""
    line = json.dumps(value).encode() + b"\n"
    try:
        while line:
            line = line[os.write(1, line) :]
    except OSError as error:
        raise Cancelled(
            f"the program that asked for these files listens no more ({error.strerror}); the unfinished copy is kept"
        ) from error


def _holder(text: str | None) -> CacheUser | None:
    if text is None:
        return None
    try:
        holder = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--holder {text!r} is not JSON: {error}") from error
    if not isinstance(holder, dict):
        raise ConfigError(f"--holder {text!r} is not a JSON object with run_id, pid, start_time, boot_id, pid_namespace, job_id, scheduler")
    return holder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_prep.staging", description="Bring a dataset into this node's cache.")
    parser.add_argument("--source", type=Path, required=True, help="<storage>/datasets/<name>-<digest12>")
    parser.add_argument("--single", action="store_true", help="SOURCE is one file, beside which the hashes of its chunks lie")
    parser.add_argument("--cache", type=Path, required=True, help="this node's cache")
    parser.add_argument("--max-bytes", type=int, help="limit of all that is staged in the cache")
    parser.add_argument("--holder", help="JSON object: who uses the dataset; without it there is no lease")
    parser.add_argument("--bytes-per-s", type=float, help="read no faster than this from storage")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--patience-s", type=float, default=60.0, help="look so long for files that storage does not show yet")
    parser.add_argument("--peer-group", metavar="INDEX/NODES", help="our place among the nodes that stage this dataset together")
    parser.add_argument("--address", default="127.0.0.1", help="where this node listens for the others")
    parser.add_argument("--hang-s", type=float, default=PEER_HANG_S, help="give up another node from which nothing has come for so long")
    parser.add_argument("--late-s", type=float, default=PEER_LATE_S, help="read the share of a node that has brought nothing for so long")
    parser.add_argument("--check-s", type=float, default=RECHECK_S, help="hash what is here already for so long (inf: all of it)")
    parser.add_argument("--group", action="store_true", help="somebody else of our group may have made the cache")
    return parser


def leave(code: int) -> NoReturn:
    """End now, also where a thread waits for storage that does not answer: Python would wait for it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
