"""What Grid Engine is told at the making of a cluster: its bootstrap file, and changes to the texts that qconf prints. Pure."""

from tests.minicluster.spec import Spec

CELL = "default"
QUEUE = "all.q"
ENVIRONMENTS = {"node": "1", "whole": "{cores}", "fill": "$fill_up"}
"""Parallel environments by name, with the rule by which slots become nodes: `whole` takes all slots of a node."""


def environ(spec: Spec) -> dict[str, str]:
    return {"SGE_ROOT": str(spec.sge_root), "SGE_CELL": CELL}


def bootstrap(text: str, spec: Spec) -> str:
    """Debian's, with places of our own."""
    spool = spec.root / "spool"
    return changed(text, {"qmaster_spool_dir": str(spool / "qmaster"), "spooling_params": str(spool / "spooldb")})


def configuration(text: str, spec: Spec) -> str:
    times = {"load_report_time": "00:00:05", "max_unheard": clock(spec.slurmd_timeout)}
    return changed(
        text, {**times, "execd_spool_dir": str(spec.root / "spool" / "execd"), "mailer": "/bin/true", "gid_range": "20000-20100"}
    )


def scheduling(text: str) -> str:
    """The scheduler looks every 15 s; flushed, it acts within a second of a submission or an end."""
    quick = {"schedule_interval": "0:0:2", "flush_submit_sec": "1", "flush_finish_sec": "1", "load_adjustment_decay_time": "0:0:0"}
    return changed(text, {**quick, "job_load_adjustments": "NONE", "schedd_job_info": "true"})


def complexes(text: str) -> str:
    """`gpu` is counted per slot: 8.1.9 has no counting per host."""
    kept = [line for line in text.splitlines() if not line.startswith("#")]
    return "\n".join([*kept, "gpu gpu INT <= YES YES 0 0", ""])


def queue(text: str, spec: Spec) -> str:
    shell = {"shell": "/bin/bash", "tmpdir": "/tmp", "shell_start_mode": "unix_behavior"}
    size = {"qname": QUEUE, "hostlist": "@allhosts", "slots": str(spec.cores), "pe_list": " ".join(ENVIRONMENTS), "processors": "UNDEFINED"}
    return changed(text, {**size, **shell, "rerun": "FALSE", "load_thresholds": "NONE"})


def parallel_environment(name: str, spec: Spec) -> str:
    words = {
        "pe_name": name,
        "slots": "99999",
        "user_lists": "NONE",
        "xuser_lists": "NONE",
        "start_proc_args": "NONE",
        "stop_proc_args": "NONE",
        "allocation_rule": ENVIRONMENTS[name].format(cores=spec.cores),
        "control_slaves": "TRUE",
        "job_is_first_task": "FALSE",
        "urgency_slots": "min",
        "accounting_summary": "FALSE",
        "qsort_args": "NONE",
    }
    return "".join(f"{key} {value}\n" for key, value in words.items())


def host_group(spec: Spec) -> str:
    return f"group_name @allhosts\nhostlist {' '.join(spec.compute_nodes)}\n"


def clock(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def changed(text: str, values: dict[str, str]) -> str:
    """`text` of lines of a key and a value, with other values; a value that goes on after a backslash is replaced whole."""
    lines = text.replace("\\\n", " ").splitlines()
    kept = [line for line in lines if line.split(None, 1)[:1] and line.split(None, 1)[0] not in values]
    return "\n".join([*kept, *(f"{key} {value}" for key, value in values.items()), ""])
