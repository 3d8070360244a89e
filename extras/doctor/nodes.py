"""Run the checks of the nodes of a job, with one start of our Python on each, as runs are started there, and judge their answers."""

import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import msgspec

from base.errors import SlipwayError
from base.process import last_lines, packages_environ, run
from cluster.schedulers import get_scheduler
from cluster.types import Allocation, Node
from data_prep.mounts import nearest_mount
from extras.doctor.storage import own_directory
from extras.doctor.types import Context, Finding
from workflow.study.site import Site

MARK: Final = "slipway-doctor"
ARGV: Final = (sys.executable, "-P", "-m", "extras.doctor.checks")
NODES_S: Final = 150.0
AT_ONCE: Final = 32


Answer = tuple[Finding, ...]
"""The answer of one node: what it has found."""


def request_of(context: Context) -> str:
    """Encode what a node needs to know: the line that `context_of` reads."""
    value = {"site": context.site.to_json(), "nodes": context.nodes, "token_file": context.token_file, "token": context.token}
    return json.dumps({**value, "scheduler": context.scheduler, "job_id": context.job_id}) + "\n"


def context_of(line: str, name: str) -> Context:
    """Decode the context of the node `name`."""
    value = json.loads(line)
    more = {key: value[key] for key in ("scheduler", "job_id", "token_file", "token")}
    return Context(site=Site.from_json(value["site"]), place="node", hostname=name, nodes=tuple(value["nodes"]), **more)


def ask_nodes(context: Context) -> dict[str, Answer | str]:
    """Run the node program on all nodes of the job at once, and return for each its answer, or why there is none."""
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return dict(zip(context.nodes, pool.map(lambda node: _ask_node(context, node), context.nodes), strict=True))


def _ask_node(context: Context, name: str) -> Answer | str:
    assert context.job_id is not None
    scheduler = get_scheduler(context.scheduler)
    node = Node(name=name, hostname=name, address="")
    allocation = Allocation(scheduler=context.scheduler, job_id=context.job_id, nodes=(node,), device=context.site.device, exclusive=None)
    (launch,) = scheduler.launches(allocation, ARGV)
    environ = {**scheduler.launch_environ(os.environ), **packages_environ(os.environ)}
    try:
        result = run(launch.argv, timeout_s=NODES_S, env=environ, stdin=request_of(context))
        return parse_answer(result.stdout)
    except SlipwayError as error:
        return str(error)
    except msgspec.DecodeError:
        return last_lines(result.stderr, 2).replace("\n", "; ") or "no word from it; ask again"


def parse_answer(output: str) -> Answer:
    """Parse what the node program printed. Raises DecodeError."""
    line = next((line for line in output.splitlines() if line.startswith(MARK)), "")
    return msgspec.json.decode(line.removeprefix(MARK), type=Answer)


def check_nodes(context: Context) -> Iterator[Finding]:
    """Check every node of the job. A file on storage shows whether they see it."""
    if not context.nodes:
        yield Finding("launcher", "error", f"job {context.job_id} does not tell its nodes", "start the command inside of the job itself")
        return
    with own_directory(nearest_mount(context.site.storage)[0]) as directory:
        file, token = directory / "seen", secrets.token_hex(8)
        file.write_text(token)
        answers = ask_nodes(replace(context, token_file=str(file), token=token))
    yield from judge_answers(answers)


def judge_answers(answers: Mapping[str, Answer | str]) -> Iterator[Finding]:
    """Return the findings of the nodes, and which of them start our Python."""
    good = {node: answer for node, answer in answers.items() if not isinstance(answer, str)}
    for node, problem in answers.items():
        if isinstance(problem, str):
            advice = (
                f"is {sys.executable} there on the nodes? Slipway and its Python belong on storage that all nodes mount at the same place"
            )
            yield Finding("launcher", "error", f"our Python did not start on {node}: {problem}", advice)
    if good:
        yield Finding("launcher", "ok", "the nodes start our Python, " + sys.executable, nodes=tuple(good))
    for answer in good.values():
        yield from answer
