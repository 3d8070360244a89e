"""What the doctor reads from Slurm: texts of a real 22.05.8, and of other versions as their documents show them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from base.finding import Finding, worst
from cluster.doctor import checks as schedulers
from cluster.doctor.checks import Asked
from cluster.schedulers.slurm import answers, doctor
from cluster.schedulers.slurm.doctor import check_slurm, judge_partitions, judge_version, parse_version
from cluster.schedulers.slurm.jobs import partition_problem
from extras.doctor.checks import checks
from extras.doctor.surroundings import Surroundings
from workflow.study.site import local_site

CAPTURED = Path(__file__).parents[3] / "captured" / "slurm-22.05"
ASKED = Asked(scheduler="slurm", walltime_s=3600)


def captured(name: str) -> str:
    return str(json.loads((CAPTURED / f"{name}.json").read_text())["stdout"])


def said(findings: object, words: str) -> Finding:
    """The one finding that has these words."""
    assert isinstance(findings, list | tuple)
    found = [finding for finding in findings if words in finding.text]
    assert len(found) == 1, (words, findings)
    return found[0]


def changed(**values: str) -> dict[str, str]:
    return doctor.parse_config(captured("show-config")) | values


def test_the_configuration_of_a_real_cluster() -> None:
    found = doctor.parse_config(captured("show-config"))
    assert found["SLURM_VERSION"] == "22.05.8"
    assert found["SlurmctldHost[0]"] == "login(10.77.0.1)"
    assert found["SchedulerParameters"].startswith("batch_sched_delay=0,sched_interval=1")
    assert found["ConstrainDevices"] == "no"
    assert not doctor.has_accounting(found)
    findings = doctor.judge_config(found, ASKED)
    assert worst(findings) == "note"
    assert said(findings, "--gpus is broken").advice.startswith("nothing: Slipway asks with --gres")
    assert said(findings, "no slurmdbd").level == "note"
    assert said(findings, "SIGKILL follows SIGTERM").text.startswith("KillWait 5 s")
    assert said(findings, "may be requeued for another")


@pytest.mark.parametrize(
    ("values", "words", "level"),
    [
        ({"AccountingStorageType": "accounting_storage/slurmdbd"}, "sacct and sacctmgr answer", "ok"),
        ({"AccountingStorageType": "(null)"}, "no slurmdbd", "note"),  # 23.11 and later
        ({"MinJobAge": "300 sec"}, "so long squeue shows", "ok"),
        ({"MinJobAge": "2 sec"}, "may be forgotten before Slurm is asked why", "note"),
        ({"KillWait": "30 sec"}, "is enough to stop", "ok"),
        ({"JobRequeue": "0"}, "does not requeue", "note"),
        ({"PreemptType": "preempt/none", "PreemptMode": "OFF"}, "not preempted", "ok"),
        ({"PreemptMode": "GANG,SUSPEND"}, "stopped and go on later", "warning"),
        ({"PreemptMode": "CANCEL", "PreemptExemptTime": "00:10:00"}, "cancelled for another, not in its first 00:10:00", "note"),
        ({"ProctrackType": "proctrack/linuxproc"}, "outlives its job", "warning"),
        ({"TaskPlugin": "task/affinity,task/cgroup", "ConstrainCores": "yes", "ConstrainRAMSpace": "yes"}, "ConstrainDevices no", "note"),
        (
            {"TaskPlugin": "task/cgroup"} | dict.fromkeys(("ConstrainCores", "ConstrainRAMSpace", "ConstrainDevices"), "yes"),
            "are enforced",
            "ok",
        ),
        ({"SelectType": "select/linear"}, "whole nodes, always", "note"),
        ({"JobContainerType": "job_container/tmpfs"}, "a /tmp and /dev/shm of its own", "note"),
        ({"Epilog": "/etc/slurm/epilog.sh"}, "Epilog /etc/slurm/epilog.sh runs", "note"),
        ({"SlurmctldParameters": "rl_enable,rl_refill_rate=4"}, "rl_enable", "note"),
        ({"SLURM_VERSION": "20.02.7"}, "no --overlap", "error"),
    ],
)
def test_one_value_changes_one_judgement(values: dict[str, str], words: str, level: str) -> None:
    assert said(doctor.judge_config(changed(**values), ASKED), words).level == level


def test_the_site_has_a_say_in_the_judgement() -> None:
    plain = changed()
    shared = Asked(scheduler="slurm", share_nodes=True)
    assert said(doctor.judge_config(plain, shared), "TaskPlugin none").level == "warning"
    gpus = Asked(scheduler="slurm", gpus_per_node=4)
    assert said(doctor.judge_config(changed(GresTypes="(null)"), gpus), "does not know them").level == "error"


def test_a_configuration_that_says_nothing_ends_in_findings_not_in_an_error() -> None:
    assert doctor.judge_config({}, ASKED)
    assert doctor.parse_config("slurm_load_ctl_conf error: Unable to contact slurm controller\n\n= \n===") == {}
    assert doctor.seconds("5 min") == 300
    assert doctor.seconds("INFINITE") is None


@pytest.mark.parametrize(
    ("text", "version"),
    [("22.05.8", (22, 5, 8)), ("slurm-wlm 22.05.8", (22, 5, 8)), ("slurm 25.05.0-1.el9", (25, 5, 0)), ("24.11", (24, 11, 0)), ("?", None)],
)
def test_versions(text: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("version", "plugin", "broken", "end", "children", "cgroups"),
    [
        ((22, 5, 4), "cgroup/v1", False, True, True, True),
        ((22, 5, 5), "cgroup/v1", True, True, True, True),
        ((22, 5, 9), None, False, True, True, True),
        ((23, 2, 0), "cgroup/v2", False, False, True, True),
        ((24, 11, 1), "cgroup/v2", False, False, False, True),
        ((25, 5, 0), "cgroup/v2", False, False, False, False),
        ((25, 5, 0), "cgroup/v1", False, False, False, True),
    ],
)
def test_what_is_known_of_a_version(
    version: tuple[int, int, int], plugin: str | None, broken: bool, end: bool, children: bool, cgroups: bool
) -> None:
    texts = " ".join(finding.text for finding in judge_version(version, plugin))
    assert [words in texts for words in ("--gpus is broken", "SLURM_JOB_END_TIME", "SignalChildrenProcesses", "cgroup.kill")] == [
        broken,
        end,
        children,
        cgroups,
    ]


def test_partitions_of_a_real_cluster() -> None:
    lines = answers.parse_partitions(captured("show-partition"))
    assert list(lines) == ["main", "urgent"]
    assert lines["main"]["MaxTime"] == "1-00:00:00"
    assert lines["main"]["Nodes"] == "n[1-4]"
    assert answers.default_partition(lines) == "main"
    nodes = answers.parse_nodes(captured("sinfo-exact"))
    assert (nodes[0].partition, nodes[0].count, nodes[0].cpus, nodes[0].gpus, nodes[0].gpu_model) == ("main", 4, 8, 8, "p100")
    assert nodes[0].usable
    findings = judge_partitions(lines, nodes, ASKED)
    assert said(findings, "main (default): 4 nodes of 8 cores").level == "ok"
    assert worst(findings) == "ok"


OTHERS = """\
gpu|6|idle|64+|515000+|gpu:a100:4(S:0-1),gpu:v100:2(S:0-1)|a100,ib
gpu|2|drained*|64|515000|gpu:a100:4(S:0-1)|a100
mig|1|idle|64|515000|gpu:a100_1g.5gb:7,shard:10|(null)
cpu|100|allocated|128|257000|(null)|(null)
this line is not a line of sinfo
"""


def test_nodes_as_other_sites_have_them() -> None:
    nodes = answers.parse_nodes(OTHERS)
    assert [(group.partition, group.count, group.cpus, group.gpus, group.usable) for group in nodes] == [
        ("gpu", 6, 64, 6, True),
        ("gpu", 2, 64, 4, False),
        ("mig", 1, 64, 7, True),
        ("cpu", 100, 128, 0, True),
    ]


def gpu(**values: str) -> dict[str, dict[str, str]]:
    return {"gpu": {"PartitionName": "gpu", "State": "UP", "MaxTime": "2-00:00:00"} | values}


@pytest.mark.parametrize(
    ("lines", "asked", "words", "level"),
    [
        (gpu(), {"queue": "gpus"}, "not a partition of this cluster", "error"),
        (gpu(), {}, "no default partition", "error"),
        (gpu(State="DOWN"), {"queue": "gpu"}, "is DOWN", "error"),
        (gpu(), {"queue": "gpu"}, "2 of 8 nodes of gpu cannot be used now: drained*", "note"),
        (gpu(), {"queue": "gpu", "gpus_per_node": 8}, "have 6 at most", "error"),
        (gpu(), {"queue": "gpu", "walltime_s": 3 * 86400.0}, "longer than MaxTime", "error"),
        (gpu(), {"queue": "gpu", "walltime_s": None}, "states no walltime", "note"),
        (gpu(AllowAccounts="physics,bio"), {"queue": "gpu", "account": "chem"}, "accounts physics,bio only", "error"),
        (gpu(AllowQos="long"), {"queue": "gpu"}, "qos long only", "warning"),
        (gpu(MaxNodes="4"), {"queue": "gpu"}, "at most 4 nodes", "note"),
        (gpu(OverSubscribe="FORCE:4"), {"queue": "gpu"}, "jobs may share cores", "note"),
        (gpu(), {"queue": "gpu", "device": "cuda"}, "does not say how many", "warning"),
    ],
)
def test_the_site_file_against_the_partition(lines: dict[str, dict[str, str]], asked: dict[str, object], words: str, level: str) -> None:
    wanted = Asked(**({"scheduler": "slurm", "walltime_s": 3600.0} | asked))  # type: ignore[arg-type]
    assert said(judge_partitions(lines, answers.parse_nodes(OTHERS), wanted), words).level == level


def test_a_limit_that_cannot_be_read_is_none() -> None:
    assert [answers.longest_s({"MaxTime": text}) for text in ("1-00:00:00", "UNLIMITED", "later")] == [86400, None, None]


def test_the_controller_answers_or_not() -> None:
    assert [finding.level for finding in doctor.judge_ping(captured("ping"), 0.01)] == ["ok"]
    assert [finding.level for finding in doctor.judge_ping(captured("ping"), 5.0)] == ["warning"]
    down = list(doctor.judge_ping(captured("ping-down"), 8.0))
    assert [finding.level for finding in down] == ["error"]
    assert "Slurmctld(primary) at login is DOWN" in down[0].text
    two = "Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n"
    assert [finding.level for finding in doctor.judge_ping(two, 0.1)] == ["note"]
    assert [finding.level for finding in doctor.judge_ping("", 0.1)] == ["error"]


@pytest.mark.parametrize("number", ["\N{SUPERSCRIPT TWO}", "9" * 401, "-1", "1" * 10])
def test_a_size_that_no_cluster_has_is_no_size(number: str) -> None:
    line = f"PartitionName=main State=UP Default=YES TotalNodes={number} MaxNodes={number} MaxTime={number}"
    found = answers.parse_partitions(line)
    assert partition_problem(found, None, 3, 90) is None
    assert judge_partitions(found, (), replace(ASKED, walltime_s=60.0))
    assert answers.parse_nodes(f"main|{number}|idle|4|1000|gpu:{number}|x\nmain|4|idle|{number}|1000|(null)|x\n") == ()


def test_activity() -> None:
    text = captured("sdiag")
    (quiet,) = doctor.judge_activity(text, "root")
    assert quiet.level == "ok"
    assert "0 jobs wait; root has asked" in quiet.text
    busy = text.replace("Server thread count:  3", "Server thread count:  250").replace(
        "DBD Agent queue size: 0", "DBD Agent queue size: 5000"
    )
    assert [finding.level for finding in doctor.judge_activity(busy, "nobody")] == ["warning", "warning"]
    assert not list(doctor.judge_activity("sdiag is not open to you", "root"))


def test_associations() -> None:
    text = "physics||long,normal|normal|10|\nbio|gpu|normal||||\n"
    found = doctor.parse_associations(text)
    assert [(one.account, one.partition, one.qos, one.limits) for one in found] == [
        ("physics", "", ("long", "normal"), "MaxJobs 10"),
        ("bio", "gpu", ("normal",), ""),
    ]
    judged = [
        (dict(account="chem"), "error", "not one of ann's: physics, bio"),
        (dict(account="bio", qos="long"), "error", "not open to account bio: normal"),
        (dict(), "note", "the default one pays"),
        (dict(account="physics", qos="long"), "ok", "account physics: qos long, normal; MaxJobs 10"),
    ]
    for asked, level, words in judged:
        findings = list(doctor.judge_associations(found, Asked(scheduler="slurm", **asked), "ann"))  # type: ignore[arg-type]
        assert worst(findings) == level
        assert any(words in finding.text for finding in findings), findings
    assert not doctor.parse_associations(captured("sacctmgr-no-accounting"))
    assert worst(doctor.judge_associations((), Asked(scheduler="slurm"), "ann")) == "warning"


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ({"sbatch", "srun", "scontrol"}, "slurm"),
        ({"sbatch"}, "local"),
        ({"bsub", "lsid"}, "lsf"),
        ({"qsub", "pbsnodes", "qstat"}, "pbs"),
        ({"qsub", "qconf"}, "sge"),
        (set(), "local"),
    ],
)
def test_which_scheduler_is_here(commands: set[str], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in commands:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert schedulers.find_scheduler() == found


@pytest.mark.parametrize(
    ("site", "here", "version", "level"),
    [
        ("slurm", "slurm", "slurm 23.02.1", "ok"),
        ("slurm", "local", "", "error"),
        ("local", "slurm", "slurm 23.02.1", "note"),
        ("local", "slurm", "", "ok"),
        ("local", "local", "", "ok"),
        ("pbs", "pbs", "pbs_version = 22.05.11", "error"),
    ],
)
def test_the_scheduler_of_the_site_against_the_one_that_is_here(site: str, here: str, version: str, level: str) -> None:
    assert worst(schedulers.judge_choice(site, here, version, frozenset(("local", "slurm")))) == level


def test_the_step_on_all_nodes() -> None:
    text = "@ n1 0,1\nnoise\n@ n2 0,1\n"
    findings = list(doctor.judge_step(doctor.parse_step(text), ("n1", "n2"), 0.2))
    assert worst(findings) == "ok"
    assert said(findings, "CUDA_VISIBLE_DEVICES in a task: 0,1").nodes == ("n1", "n2")
    missing = list(doctor.judge_step({"n1": "unset"}, ("n1", "n2"), 20.0))
    assert said(missing, "nothing on n2").level == "error"
    assert said(missing, "one task").level == "note"
    assert said(list(doctor.judge_step({"n1": "0", "n2": "0,1"}, ("n1", "n2"), 1)), "different numbers of GPUs").level == "warning"
    assert doctor.step_argv("7", ("n1", "n2"), ("true",))[-1] == "true"


def test_versions_of_srun_and_scontrol() -> None:
    one = captured("srun-version")
    assert worst(doctor.judge_versions(one, one)) == "ok"
    assert worst(doctor.judge_versions(one, "slurm 23.02.1")) == "warning"
    assert worst(doctor.judge_versions("", one)) == "error"


@pytest.mark.slow
def test_a_controller_that_is_silent_is_asked_once_and_for_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scontrol", "sinfo", "squeue", "sbatch", "srun"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/asked\n[ "$1" = --version ] && exit\nexec tail -f /dev/null\n'
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = list(check_slurm(ASKED))
    assert [finding.level for finding in found] == ["error"]
    assert "the controller does not answer: no word within 5 s" in found[0].text
    assert (tmp_path / "asked").read_text() == "scontrol ping\n"
    site = replace(local_site({}), scheduler="slurm")
    where = Surroundings(hostname="login", scheduler="slurm", job_id=None, nodes=())
    asking = {"check_names_of_nodes", "check_path_of_cache"}
    later = {check.function.__name__: check.arguments for check in checks(site, where, found) if check.function.__name__ in asking}
    assert set(later) == {"check_path_of_cache"}
    assert "slurm" not in later["check_path_of_cache"]
