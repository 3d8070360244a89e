"""srun: whether it is here, of the same version, and whether it starts a task on every node of the allocation. Judging is pure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from base.command import CommandResult, last_lines, run
from base.errors import SlipwayError
from base.finding import Finding
from base.units import format_duration
from cluster.schedulers.limits import STEP_S
from cluster.schedulers.slurm.doctor.versions import parse_version
from cluster.schedulers.slurm.limits import SLOW_STEP_S
from cluster.schedulers.slurm.query import slurm_environment
from cluster.schedulers.slurm.steps import srun_environment

SUBJECT: Final = "launcher"
MOST_ALONE: Final = 8
"""So many nodes are tried one by one when the step on all of them has failed."""
SAY: Final = ("/bin/sh", "-c", 'echo "@ $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES-unset}"')


def step_argv(job_id: str, nodes: Sequence[str], argv: Sequence[str]) -> tuple[str, ...]:
    """Pure: `argv` once on each of `nodes`, beside whatever else runs in the job, with all GPUs of the job there."""
    count = len(nodes)
    return (
        *("srun", f"--jobid={job_id}", "--overlap", f"--nodelist={','.join(nodes)}", f"--nodes={count}", f"--ntasks={count}"),
        *("--ntasks-per-node=1", "--mem=0", "--cpu-bind=none", "--input=none", "--kill-on-bad-exit=0", "--job-name=slipway-doctor"),
        *argv,
    )


def run_step(
    job_id: str, nodes: Sequence[str], argv: Sequence[str], timeout_s: float, more: Mapping[str, str] = MappingProxyType({})
) -> CommandResult:
    """Run it, in the environment of a run's own steps with `more`. Raises SlipwayError when it cannot be started or does not end."""
    env = {**srun_environment(os.environ, slurm_environment(os.environ)), **more}
    return run(step_argv(job_id, nodes, argv), timeout_s=timeout_s, env=env)


def parse_step(text: str) -> dict[str, str]:
    """What `SAY` printed: node -> its CUDA_VISIBLE_DEVICES, `unset` where there is none."""
    lines = [line.split(" ", 2) for line in text.splitlines() if line.startswith("@ ")]
    return {words[1]: words[2] for words in lines if len(words) == 3}


def judge_step(said: Mapping[str, str], nodes: Sequence[str], taken_s: float) -> Iterator[Finding]:
    """Pure: who answered, how fast, with which GPUs."""
    missing = [name for name in nodes if name not in said]
    if missing:
        text = f"srun started nothing on {', '.join(missing)} of {len(nodes)} nodes"
        yield Finding(SUBJECT, "error", text, f"`scontrol show node {missing[0]}`, and the log of its slurmd")
    if not said:
        return
    slow = taken_s > SLOW_STEP_S
    where = f"{len(said)} {'node' if len(said) == 1 else 'nodes'}"
    text = f"srun started one task on each of {where} in {format_duration(taken_s)}"
    yield Finding(SUBJECT, "note" if slow else "ok", text, "each run waits so long before it begins" if slow else "")
    groups: dict[str, list[str]] = {}
    for name, devices in sorted(said.items(), key=lambda pair: nodes.index(pair[0]) if pair[0] in nodes else len(nodes)):
        groups.setdefault(devices, []).append(name)
    for devices, names in groups.items():
        shown = "not set" if devices == "unset" else devices or "empty"
        yield Finding("gpus", "ok", f"CUDA_VISIBLE_DEVICES in a task: {shown}", "", tuple(names))
    if len({len(devices.split(",")) if devices not in ("", "unset") else 0 for devices in groups}) > 1:
        yield Finding("gpus", "warning", "the nodes of this allocation have different numbers of GPUs", "ask for them with --gres=gpu:N")


def judge_versions(srun: str, scontrol: str) -> Iterator[Finding]:
    """Pure: the words of both commands."""
    ours, theirs = parse_version(srun), parse_version(scontrol)
    if ours is None:
        yield Finding(SUBJECT, "error", f"srun does not say its version: {srun.strip() or 'no answer'}", "`srun --version` by hand")
    elif ours != theirs:
        text = f"srun is {srun.strip()}, scontrol is {scontrol.strip() or 'silent'}: two installations on PATH"
        yield Finding(SUBJECT, "warning", text, "the site's own first on PATH, or the right module")
    else:
        yield Finding(SUBJECT, "ok", f"srun is {srun.strip()}, as scontrol")


def check_versions() -> tuple[Finding, ...]:
    """Ask both; the controller has no part in it."""
    said = []
    for command in ("srun", "scontrol"):
        try:
            said.append(run((command, "--version"), timeout_s=10.0).stdout)
        except SlipwayError as error:
            return (Finding(SUBJECT, "error", str(error), "a login node, or the module of the scheduler"),)
    return tuple(judge_versions(*said))


def try_step(job_id: str, nodes: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """One real step on all nodes; where it fails, one on each, so that the bad one has a name. Findings, and the nodes that answered."""
    start = time.monotonic()
    try:
        result = run_step(job_id, nodes, SAY, STEP_S)
    except SlipwayError:
        reason = f"does not end within {STEP_S:g} s"
    else:
        if result.returncode == 0:
            said = parse_step(result.stdout)
            return tuple(judge_step(said, nodes, time.monotonic() - start)), tuple(name for name in nodes if name in said)
        reason = f"ends with {result.returncode}: {last_lines(result.stderr, 2)}".replace("\n", "; ")
    where = ", ".join(nodes[:MOST_ALONE])
    found = [Finding(SUBJECT, "error", f"srun on {where} {reason}", "`squeue --steps` shows what else runs there; one by one:")]
    good = []
    for name in nodes[:MOST_ALONE]:
        trouble = _alone(job_id, name)
        if trouble:
            advice = f"`scontrol show node {name}`, and the log of its slurmd; another allocation without it: --exclude={name}"
            found.append(Finding(SUBJECT, "error", f"srun on {name} alone {trouble}", advice))
        else:
            found.append(Finding(SUBJECT, "ok", f"srun on {name} alone works"))
            good.append(name)
    return tuple(found), tuple(good)


def _alone(job_id: str, name: str) -> str:
    """What went wrong; empty where nothing did."""
    limit = STEP_S / MOST_ALONE
    try:
        result = run_step(job_id, (name,), SAY, limit)
    except SlipwayError:
        return f"does not end within {limit:g} s"
    return f"ends with {result.returncode}: {last_lines(result.stderr, 1)}" if result.returncode else ""
