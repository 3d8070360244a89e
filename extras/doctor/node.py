"""Run the part of `slipway doctor` for every node of an allocation, once on each: no pydantic, no YAML, so that it starts fast.

It has one argument, a JSON object (see `Orders`), and prints on standard output a JSON object in pieces (see `to_lines`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from base.errors import SlipwayError
from base.finding import Finding
from base.limited import call_limited
from base.userpath import expanded_path
from cluster.detection import node_name
from cluster.doctor.checks import check_gpus, check_interfaces, check_limits, check_nodes, check_own_name, read_interfaces, recommended
from cluster.machine import memory_bytes, usable_cores
from containers.doctor import check_engines
from data_prep.doctor.trial import check_cache, local_places
from extras.doctor.guard import Check, guarded
from workflow.run.node.ranks import FIRST_PORT, LAST_PORT

# A long text of each task through one `srun`, in pieces.


MARK: Final = "slipway-doctor"
PIECE: Final = 800
"""Characters, of ASCII, so that a line with mark, key and numbers stays below the limit."""


def to_lines(key: str, text: str) -> Iterator[str]:
    """Split `text`, one line of ASCII, into lines of its pieces. `key` names the task: no spaces.

    srun passes a line of more than 1024 bytes on in parts, with those of other tasks between them (SLURM_IO_MAX_MSG_LEN; three tasks
    with lines of 4000 bytes, Slurm 22.05: a quarter of the lines were torn).
    """
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    for number, piece in enumerate(pieces):
        yield f"{MARK} {key} {number} {len(pieces)} {piece}\n"


def from_lines(output: str) -> dict[str, str]:
    """Join the pieces by key, of whatever else a step printed. A text of which a piece is missing is left out."""
    found: dict[str, dict[int, str]] = {}
    wanted: dict[str, int] = {}
    for line in output.split("\n"):
        words = line.split(" ", 4)
        if len(words) == 5 and words[0] == MARK and words[2].isdecimal() and words[3].isdecimal():
            found.setdefault(words[1], {})[int(words[2])] = words[4]
            wanted[words[1]] = int(words[3])
    return {key: "".join(pieces[n] for n in sorted(pieces)) for key, pieces in found.items() if sorted(pieces) == list(range(wanted[key]))}


SEEN_S: Final = 15.0


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The orders for every node.

    `token_file`: a file on storage that holds `token`; `nodes`: all names, empty where runs stay here.
    """

    cache: str
    max_bytes: int | None
    private_tmp: bool
    device: str
    gpus_per_node: int | None
    engine: str
    interface: str | None
    nodes: tuple[str, ...] = ()
    token_file: str | None = None
    token: str = ""
    facts_only: bool = False
    group: bool = False
    """The site says `shared: group`."""


def machine_checks(orders: Orders, alone: bool, *, starts: bool, other: str | None = None) -> list[Check]:
    """List the checks of every machine. `starts`: runs are started there; `other`: the name of another node."""
    network = (orders.interface, other, starts and not alone, (FIRST_PORT, LAST_PORT))
    return [
        Check(subject="limits", function=check_limits),
        Check(subject="names", function=check_own_name, arguments=(alone,), timeout_s=15),
        Check(subject="network", function=check_interfaces, arguments=network, timeout_s=15),
        Check(subject="gpus", function=check_gpus, arguments=(orders.device, orders.gpus_per_node, starts), timeout_s=30),
        Check(subject="engines", function=check_engines, arguments=(orders.engine,), timeout_s=30),
    ]


def local_checks(orders: Orders, name: str, alone: bool) -> list[Check]:
    """List the checks of a machine where runs are started."""
    other = next((node for node in orders.nodes if node != name), None)
    cache = (orders.cache, orders.max_bytes, alone, orders.private_tmp, orders.group)
    checks = [
        Check(subject="cache", function=check_own_cache, arguments=cache, timeout_s=30),
        *machine_checks(orders, alone, starts=True, other=other),
    ]
    if len(orders.nodes) > 1:
        checks.append(Check(subject="names", function=check_nodes, arguments=(orders.nodes,), timeout_s=20))
    if orders.token_file:
        checks.append(Check(subject="storage", function=check_seen, arguments=(orders.token_file, orders.token), timeout_s=SEEN_S + 10))
    return checks


def check_own_cache(cache: str, max_bytes: int | None, alone: bool, private_tmp: bool, group: bool) -> tuple[Finding, ...]:
    """Check the cache as it is called here: its path may hold variables."""
    try:
        path = Path(cache) if alone else expanded_path(cache, os.environ)
        return check_cache(path, max_bytes, alone, private_tmp, group)
    except ValueError as error:
        advice = "a variable that the scheduler or `setup` of the site file sets on every node, or a path without one"
        return (Finding("cache", "error", f"cache.path {error}", advice),)


def check_seen(path: str, token: str, limit_s: float = SEEN_S) -> tuple[Finding, ...]:
    """Check whether this node sees a file that another machine has just made on storage.

    An attribute cache may hide it for a while.
    """
    start = time.monotonic()
    while True:
        try:
            os.listdir(Path(path).parent.parent)
            if Path(path).read_text() == token:
                break
            reason = "it holds something else"
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() - start > limit_s:
            text = f"a file just made on storage is not there on this node ({reason}): {path}"
            return (Finding("storage", "error", text, "storage: network storage that all nodes mount at the same place"),)
        time.sleep(0.2)  # the attribute cache of a network file system tells nobody when it is renewed
    waited = time.monotonic() - start
    late = f", after {waited:.0f} s" if waited >= 1 else ""
    return (Finding("storage", "ok", f"the nodes see what is made on storage{late}"),)


def facts() -> dict[str, Any]:
    """Return what a draft of a site file needs to know of a node."""
    best = recommended(read_interfaces(), None)
    try:
        places = call_limited("places", lambda: [str(place) for place in local_places()], timeout_s=10)
    except SlipwayError:
        places = []
    return {
        "cores": len(usable_cores()),
        "memory_bytes": memory_bytes(),
        "interface": best.name if best and len(read_interfaces()) > 1 else None,
        "nvidia": shutil.which("nvidia-smi") is not None,
        "places": places,
    }


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the answer."""
    clock = time.time()
    given = json.loads(arguments[0])
    orders = Orders(**{**given, "nodes": tuple(given["nodes"])})
    name = node_name(environ) or os.uname().nodename
    checks = [] if orders.facts_only else local_checks(orders, name, alone=False)
    findings = [replace(finding, nodes=(name,)) for check in checks for finding in guarded(check)]
    answer = {"node": name, "clock": clock, "facts": facts(), "findings": [finding.to_json() for finding in findings]}
    sys.stdout.writelines(to_lines(name, json.dumps(answer)))
    return 0


def to_argument(orders: Orders) -> str:
    """Encode the argument that `main` reads."""
    return json.dumps(asdict(orders))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
