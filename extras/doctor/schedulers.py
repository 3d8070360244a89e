"""Check the scheduler of a site by a few queries, none of which is repeated for long: one entry of `BATCH` for each scheduler."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from base.errors import AllocationError, SchedulerOutputError, SchedulerSilent, SlipwayError
from base.humanize import choices
from base.process import last_lines, run
from cluster.detection import SIGNS, scheduler_of
from cluster.schedulers.lsf import hosts_of_job as hosts_of_lsf_job
from cluster.schedulers.lsf.answers import LSF
from cluster.schedulers.lsf.answers import parse_queues as lsf_queues
from cluster.schedulers.pbs import node_names as nodes_of_pbs_job
from cluster.schedulers.pbs.answers import PBS, parse_entries
from cluster.schedulers.pbs.jobs import Entries
from cluster.schedulers.queries import QUICK_ANSWER_S, Server, ask
from cluster.schedulers.sge import hosts_of_job as hosts_of_sge_job
from cluster.schedulers.sge.answers import SGE, SHORT_NOTICE_S, parse_settings
from cluster.schedulers.slurm.answers import NODE_LIST, SLURM, job_environ, node_names
from extras.doctor import slurm
from extras.doctor.types import Context, Finding, query
from workflow.study.site import Site

PBS_SERVER: Final = ("qstat", "-B", "-f", "-F", "json")


def judge_lsf(site: Site) -> Iterator[Finding]:
    """Check mbatchd and the queue."""
    yield Finding("scheduler", "ok", f"mbatchd answers; queues: {', '.join(lsf_queues(query(LSF, 'bqueues', '-w')))}")
    if site.queue is not None:
        yield from judge_lsf_queue(site.queue, query(LSF, "bqueues", "-l", site.queue), site.share_nodes)


def judge_lsf_queue(name: str, answer: str, share_nodes: bool) -> Iterator[Finding]:
    """Check the answer of `bqueues -l`: runs need exclusive jobs unless they share nodes."""
    if not share_nodes and not re.search(r"^SCHEDULING POLICIES:.*\bEXCLUSIVE\b", answer, re.MULTILINE):
        advice = "another queue, EXCLUSIVE = Y in lsb.queues, or `share_nodes: true` in the site file"
        yield Finding("scheduler", "error", f"queue {name} does not take exclusive jobs, and runs get nodes of their own", advice)


def lsf_allocation(site: Site) -> tuple[str, ...]:
    """Return the bsub with the requests of the site's jobs; what follows runs on the first node."""
    slots = site.cpus_per_node or 1
    options = _options({"-q": site.queue, "-P": site.account})
    return ("bsub", "-Is", "-n", str(2 * slots), "-R", f"span[ptile={slots}]", "-W", "10", *options)


def judge_sge(site: Site) -> Iterator[Finding]:
    """Check qmaster, the queue and the parallel environment."""
    queues = query(SGE, "qconf", "-sql").split()
    if site.queue is None:
        yield Finding("scheduler", "ok", f"sge_qmaster answers; queues: {', '.join(queues)}")
    elif site.queue.partition("@")[0] not in queues:
        yield Finding("scheduler", "error", f"queue {site.queue!r} is none of this cell", choices(site.queue, queues))
    else:
        yield from judge_sge_queue(site.queue, parse_settings(query(SGE, "qconf", "-sq", site.queue.partition("@")[0])))
    if not site.parallel_environment:
        environments = query(SGE, "qconf", "-spl").split()
        text = "the site file names no parallel_environment, without which no programs start on nodes"
        yield Finding("scheduler", "error", text, f"`parallel_environment: NAME SLOTS`; here are: {', '.join(environments) or 'none'}")


def judge_sge_queue(name: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    """Check the answer of `qconf -sq`."""
    yield Finding("scheduler", "ok", f"sge_qmaster answers; queue {name} has {settings.get('slots', '?')} slots per node")
    notice = [int(part) for part in settings.get("notify", "").split(":") if part.isdecimal()]
    if len(notice) == 3 and notice[0] * 3600 + notice[1] * 60 + notice[2] < SHORT_NOTICE_S:
        advice = "runs that are cancelled may leave no record of it: ask the site for `notify 00:01:00` in the queue"
        yield Finding("scheduler", "warning", f"queue {name} kills {settings['notify']} after its warning", advice)


def sge_allocation(site: Site) -> tuple[str, ...]:
    """Return the qrsh with the requests of the site's jobs; what follows runs on the first node."""
    name, slots, *_ = [*(site.parallel_environment or "PARALLEL_ENVIRONMENT").split(), str(site.cpus_per_node or 1)]
    options = _options({"-q": site.queue, "-P": site.account})
    return ("qrsh", "-now", "no", "-cwd", "-V", "-pe", name, str(2 * int(slots)), "-l", "h_rt=600", *options)


def pbs_entries(argv: Sequence[str]) -> Entries:
    """Query the server of PBS for entries by name."""
    return parse_entries(query(PBS, *argv))


def judge_pbs(site: Site) -> Iterator[Finding]:
    """Check the server and its queues."""
    yield from judge_pbs_server(pbs_entries(PBS_SERVER))
    queues = pbs_entries(("qstat", "-Q", "-f", "-F", "json"))
    if site.queue is None:
        text = f"the site names no queue: PBS takes its default; there are {', '.join(sorted(queues)) or 'none'}"
        yield Finding("scheduler", "ok", text)
    elif site.queue not in queues:
        yield Finding("scheduler", "error", f"queue {site.queue!r} is none of this cluster", choices(site.queue, queues))
    elif "False" in (queues[site.queue].get("enabled"), queues[site.queue].get("started")):
        yield Finding("scheduler", "warning", f"queue {site.queue} takes or starts no jobs now", choices(site.queue, queues))
    yield from judge_pbs_sizes(site)


def judge_pbs_server(server: Entries) -> Iterator[Finding]:
    """Report the state of the server, and whether it remembers jobs that have ended."""
    for name, said in server.items():
        state, version = said.get("server_state", "unknown"), said.get("pbs_version", "of unknown version")
        yield Finding("scheduler", "ok" if state == "Active" else "warning", f"the server {name} (PBS {version}) is {state}")
        if said.get("job_history_enable") != "True":
            text = "PBS forgets jobs when they end (job_history_enable is not set): how one ended is known by what it left on storage only"
            yield Finding("scheduler", "note", text, "the site's administrators can set job_history_enable")


def judge_pbs_sizes(site: Site) -> Iterator[Finding]:
    """Report whether anything counts cores and GPUs."""
    if site.gpus_per_node and site.share_nodes:
        text = "runs share nodes: only PBS's cgroup hook says which GPUs are a job's (CUDA_VISIBLE_DEVICES); without it runs are refused"
        yield Finding("scheduler", "note", text, "`slipway gpus --explain` in a job; or share_nodes: false")
    if site.cpus_per_node is None:
        text = "the site file says no cpus_per_node: jobs ask for one core per node, which a site with the cgroup hook enforces"
        yield Finding("scheduler", "warning", text, "cpus_per_node: N in the site file")


def pbs_allocation(site: Site) -> tuple[str, ...]:
    """Return the `qsub -I` with the requests of the site's jobs; it takes one program after `--`."""
    chunk = [f"ncpus={site.cpus_per_node or 1}", "mpiprocs=1", *((f"ngpus={site.gpus_per_node}",) if site.gpus_per_node else ())]
    chunk += [site.constraint] if site.constraint else []
    select = f"select=2:{':'.join(chunk)}"
    options = _options({"-q": site.queue, "-A": site.account})
    return ("qsub", "-I", "-l", select, "-l", "place=scatter:exclhost", "-l", "walltime=00:10:00", *options, "--")


def _options(options: Mapping[str, str | None]) -> list[str]:
    return [word for option, value in options.items() if value for word in (option, value)]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What the checks need of one scheduler."""

    server: Server
    probe: tuple[str, ...]
    """A query that is answered wherever the commands know a cluster."""
    advice: str
    """What to do where the commands do not work."""
    nodes_of_job: Callable[[Mapping[str, str]], Iterable[str]]
    judge: Callable[[Site], Iterable[Finding]]
    allocation: Callable[[Site], tuple[str, ...]]
    """The function that returns the command which gets two nodes for the rest of its words, at the terminal."""


BATCH: Final[Mapping[str, Batch]] = {
    "slurm": Batch(
        server=SLURM,
        probe=("scontrol", "--version"),
        advice="on a login node: `scontrol ping`, and whether SLURM_CONF is the right one",
        nodes_of_job=lambda environ: node_names(job_environ(environ)[NODE_LIST]),
        judge=slurm.judge,
        allocation=slurm.allocation,
    ),
    "lsf": Batch(
        server=LSF,
        probe=("bqueues", "-w"),
        advice="on a login node: `bhosts`, and whether the cluster's profile.lsf was sourced",
        nodes_of_job=hosts_of_lsf_job,
        judge=judge_lsf,
        allocation=lsf_allocation,
    ),
    "sge": Batch(
        server=SGE,
        probe=("qconf", "-sql"),
        advice="on a login node: `qhost`, and whether the settings.sh of the cell was sourced (SGE_ROOT, SGE_CELL)",
        nodes_of_job=hosts_of_sge_job,
        judge=judge_sge,
        allocation=sge_allocation,
    ),
    "pbs": Batch(
        server=PBS,
        probe=PBS_SERVER,
        advice="on a login node: `qstat -B`, and whether /etc/pbs.conf names the server",
        nodes_of_job=nodes_of_pbs_job,
        judge=judge_pbs,
        allocation=pbs_allocation,
    ),
}


def find_scheduler(said: str | None = None) -> str:
    """Return the scheduler whose commands are on PATH, or `local`. Of several, the one that the site says."""
    names = [name for name, signs in SIGNS.items() if all(map(shutil.which, signs.commands))]
    return said if said is not None and said in names else next(iter(names), "local")


def has_cluster(name: str) -> bool:
    """Return True if the scheduler's commands know a cluster that answers, or that is silent only now."""
    try:
        ask(BATCH[name].server, BATCH[name].probe, 0.0, QUICK_ANSWER_S)
    except SchedulerSilent:
        return True
    except SchedulerOutputError:
        return False
    return True


def surroundings(environ: Mapping[str, str], site: Site) -> Context:
    """Return where the command runs, by the environment and PATH. Commands that know no cluster are no scheduler."""
    hostname, inside = os.uname().nodename, scheduler_of(environ)
    if inside is None:
        here = find_scheduler(site.scheduler)
        here = here if here != "local" and has_cluster(here) else "local"
        return Context(site=site, place="alone" if site.scheduler == "local" else "login", hostname=hostname, scheduler=here)
    try:
        nodes = tuple(BATCH[inside].nodes_of_job(environ))
    except (AllocationError, KeyError, SchedulerOutputError):
        nodes = ()
    job_id = environ[SIGNS[inside].variables[0]]
    return Context(
        site=site, place="alone" if site.scheduler == "local" else "job", hostname=hostname, scheduler=inside, job_id=job_id, nodes=nodes
    )


def check_choice(context: Context) -> Iterator[Finding]:
    """Look for a scheduler's commands and compare with the site."""
    said = context.site.scheduler
    found = scheduler_here(context)
    yield from judge_choice(said, found, version_line(found) if found != "local" else "")


def scheduler_here(context: Context) -> str:
    """Return the scheduler that is here: that of this job, inside of which its commands need not be on PATH."""
    return context.scheduler if context.job_id is not None else find_scheduler(context.site.scheduler)


def version_line(scheduler: str) -> str:
    """Return the first line that the scheduler's command prints of its version; empty where it prints nothing."""
    try:
        result = run(SIGNS[scheduler].version, timeout_s=10.0)
    except SlipwayError:
        return ""
    return last_lines("\n".join(f"{result.stdout}\n{result.stderr}".split("\n")[:1]), 1).strip()


def judge_choice(said: str, found: str, version: str) -> Iterator[Finding]:
    """Compare the site's scheduler with the one that is here."""
    here = f"{found} ({version})" if version else found
    if said == found:
        none = "no scheduler is here; the site says local: runs use this machine"
        yield Finding("scheduler", "ok", none if said == "local" else f"the commands of {here} are here, as the site says")
    elif said == "local" and not version:
        text = f"the commands of {found} are installed, but say nothing (no configuration of a cluster is here)"
        yield Finding("scheduler", "ok", f"{text}; the site says local: runs use this machine")
    elif said == "local":
        advice = "`slipway doctor --write-site NAME` writes a site file for this cluster"
        yield Finding("scheduler", "note", f"{here} is here, but the site says scheduler: local: runs use this machine only", advice)
    else:
        needed = ", ".join(SIGNS[said].commands)
        text = f"the site says scheduler: {said}, but its commands ({needed}) are not on PATH here; found: {here}"
        yield Finding("scheduler", "error", text, "run this on a login node of that cluster, load its module, or correct `scheduler`")


def check_scheduler(context: Context) -> Iterator[Finding]:
    """Query the scheduler about its configuration."""
    site = context.site
    if site.scheduler not in BATCH or scheduler_here(context) != site.scheduler:
        return
    batch = BATCH[site.scheduler]
    try:
        yield from batch.judge(site)
    except SchedulerSilent as error:
        yield Finding("scheduler", "error", str(error), f"wait and ask again; runs that go on are not lost; {batch.advice}")
    except SchedulerOutputError as error:
        yield Finding("scheduler", "error", str(error), batch.advice)
