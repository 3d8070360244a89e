"""What Snakemake's slurm plugin hears of Slurm: through the stand-ins, with Slurm's real commands replaced on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from base.logs import level_and_message
from cluster.schedulers.jobs import Submitter
from cluster.schedulers.slurm.patient import IN_JOBS, IN_MAIN, job_environ, patient_environ, plain_path
from cluster.schedulers.slurm.patient.answers import is_status_query, option, with_ended, with_long_memory
from cluster.schedulers.slurm.queue import COLUMNS

pytestmark = pytest.mark.slow  # a process for each answer
ROOT = Path(__file__).parents[4]
STATUS_QUERY = ("squeue", "--format=%i|%T", "--states=all", "--noheader", "--name", "uuid-1")
SILENT = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def submitter(place: Path) -> Submitter:
    where = {"state": place / "state", "run_logs": str(place / "logs"), "builds": str(place / "builds")}
    return Submitter(pid=0, account="proj", mark="slipway=a-1234", **where)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command as the plugin does, where `real` says what Slurm's own command of that name does."""
    (tmp_path / "bin").mkdir()

    def call(
        argv: tuple[str, ...], real: str, *, in_job: bool = False, squeue: str = "true", **more: str
    ) -> subprocess.CompletedProcess[str]:
        for name, does in {"squeue": squeue, argv[0]: real}.items():
            path = tmp_path / "bin" / name
            path.write_text(f"#!/bin/sh\n{does}\n")
            path.chmod(0o755)
        own = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **more}
        env = {**own, **patient_environ(own, submitter(tmp_path))}
        return subprocess.run(argv, env=job_environ(env) if in_job else env, capture_output=True, text=True, check=False, timeout=60)

    return call


def test_paths() -> None:
    path = patient_environ({"PATH": "/a:/b"}, submitter(Path("/state")))["PATH"]
    assert path == f"{IN_MAIN}:{IN_JOBS}:/a:/b"
    assert patient_environ({"PATH": path}, submitter(Path("/state")))["PATH"] == path
    assert plain_path(path) == "/a:/b"
    assert job_environ({"PATH": path, "HOME": "/me", "SLIPWAY_PATIENT_PID": "7"}) == {
        "PATH": f"{IN_JOBS}:/a:/b",
        "HOME": "/me",
        "PYTHONSAFEPATH": "1",
    }


def test_the_cluster_is_remembered_only_where_it_is_named() -> None:
    assert "SLIPWAY_SLURM_CONF" not in patient_environ({"PATH": ""}, submitter(Path("/state")))
    assert patient_environ({"PATH": "", "SLURM_CONF": "/x"}, submitter(Path("/state")))["SLIPWAY_SLURM_CONF"] == "/x"


def test_the_plugins_status_query_is_known() -> None:
    assert is_status_query(STATUS_QUERY)
    assert not is_status_query(("squeue", "--me"))
    assert option(("sbatch", "--comment", "a b"), "--comment") == "a b"
    assert option(("sbatch", "--comment=a b"), "--comment") == "a b"
    assert option(("sbatch", "--comment"), "--comment") is None


def test_a_job_that_squeue_has_forgotten_has_ended() -> None:
    text = "5|RUNNING\n6|COMPLETED\n"
    submitted = ["4 1000 rule_a", "5 1000", "7 1050", "torn"]
    assert with_ended(text, submitted, now=1100.0) == "5|RUNNING\n6|COMPLETED\n4|COMPLETED\n"
    assert with_ended("", [], now=1100.0) == ""


@pytest.mark.parametrize(("found", "told"), [(2, 300), (300, 300), (3600, 3600)])
def test_a_short_memory_is_told_longer(found: int, told: int) -> None:
    config = "ClusterName             = x\nMinJobAge               = {} sec\nMpiDefault              = none\n"
    assert with_long_memory(config.format(found)) == config.format(told)


def test_squeue_answers_as_slurm_does(run: Run) -> None:
    done = run(STATUS_QUERY, "echo '5|RUNNING'")
    assert (done.returncode, done.stdout) == (0, "5|RUNNING\n")
    assert run(("squeue", "--me"), 'echo "real $*"; exit 3').stdout == "real --me\n"


@pytest.mark.slow
def test_a_silent_squeue_is_no_news_and_no_failure(run: Run) -> None:
    done = run(STATUS_QUERY, SILENT)
    assert (done.returncode, done.stdout) == (0, "")
    assert "slurmctld does not answer; the jobs are waited for" in done.stderr


def test_the_configuration_is_asked_for_once(run: Run, tmp_path: Path) -> None:
    asked = "echo x >> $0.calls; echo 'MinJobAge               = 300 sec'"
    for _ in range(3):
        assert run(("scontrol", "show", "config"), asked).stdout == "MinJobAge               = 300 sec\n"
    assert (tmp_path / "bin" / "scontrol.calls").read_text() == "x\n"
    assert run(("scontrol", "show", "config"), SILENT).stdout == "MinJobAge               = 300 sec\n"
    assert run(("scontrol", "show", "config"), SILENT, in_job=True).stdout == "MinJobAge               = 300 sec\n"


def test_the_account_is_not_guessed(run: Run) -> None:
    assert run(("sacct", "-nu", "me", "-o", "Account%256", "|", "tail", "-1"), "exit 1").stdout == "none\n"
    assert run(("sacct", "-X"), "echo real").stdout == "real\n"
    done = run(("sacctmgr", "-n", "-s", "list", "user", "me", "format=account%256"), "exit 1")
    assert (done.returncode, done.stdout) == (0, "proj\n")


def test_sbatch_marks_its_job_and_leaves_the_job_a_plain_path(run: Run, tmp_path: Path) -> None:
    argv = ("sbatch", "--parsable", "--job-name", "uuid-1", "--comment", "rule_a", "--wrap=true")
    done = run(argv, 'printf "%s\\n" "$@" "$PATH" "$PYTHONSAFEPATH" > $0.said; echo 8')
    assert (done.returncode, done.stdout) == (0, "8\n")
    said = (tmp_path / "bin" / "sbatch.said").read_text().splitlines()
    assert said[3] == "--comment"
    assert said[4].startswith("rule_a slipway=a-1234 slipway-")
    assert said[6].split(":")[0] == IN_JOBS
    assert IN_MAIN not in said[6].split(":")
    assert said[7] == "1", "the Snakemake of the job takes no module from the user's directory"
    assert (tmp_path / "state" / "uuid-1.jobs").read_text().startswith("8 ")
    refused = run(argv, "echo 'sbatch: error: invalid qos' >&2; exit 1")
    assert refused.returncode == 1
    assert "invalid qos" in refused.stderr


RUN_COMMENT = "rule_stage_train_push_wildcards_a-r1"
SUBMIT = ("sbatch", "--parsable", "--job-name", "uuid-1", "--comment", RUN_COMMENT, "--wrap=true")


def test_a_refusal_stands_in_the_log_of_the_run_and_of_the_shard(run: Run, tmp_path: Path) -> None:
    refuses = "echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1"
    assert run(SUBMIT, refuses).returncode == 1
    assert [level_and_message(line) for line in (tmp_path / "logs" / "a-r1.log").read_text().splitlines()][:1] == [
        ("ERROR", "Slurm refused the job: sbatch: error: invalid partition specified: nope")
    ]
    shard = [word.replace(RUN_COMMENT, "rule_dataset_shard_wildcards_digits-0123_00001") for word in SUBMIT]
    assert run(tuple(shard), refuses).returncode == 1
    assert "invalid partition" in (tmp_path / "builds" / "digits-0123" / "logs" / "shard-00001.log").read_text()


def test_a_job_says_whose_it_is(run: Run, tmp_path: Path) -> None:
    assert run(SUBMIT, 'printf "%s\\n" "$@" > $0.said; echo 8').stdout == "8\n"
    comment = (tmp_path / "bin" / "sbatch.said").read_text().splitlines()[4]
    assert comment.startswith(f"{RUN_COMMENT} slipway=a-1234 slipway-")
    assert (tmp_path / "state" / "uuid-1.jobs").read_text().endswith(f" {RUN_COMMENT}\n")


def test_a_job_that_somebody_cancelled_is_not_submitted_once_more(run: Run, tmp_path: Path) -> None:
    assert run(SUBMIT, "echo 8", squeue="true").stdout == "8\n"
    again = run(SUBMIT, "echo 9", squeue="echo CANCELLED")
    assert (again.returncode, again.stdout) == (1, "")
    words = "job 8 was cancelled, by scancel or by an administrator; it is not tried again in this call"
    assert words in (tmp_path / "logs" / "a-r1.log").read_text()
    assert run(SUBMIT, "echo 10", squeue="echo NODE_FAIL").stdout == "10\n"


def in_queue(directory: Path, state: str = "PENDING", job_id: str = "8") -> str:
    values = {"job_id": job_id, "state": state, "name": "uuid-0", "comment": f"{RUN_COMMENT} slipway=a-1234 slipway-0a", "restarts": "0"}
    line = "".join(({**values, "directory": str(directory)}.get(key, "N/A")).ljust(width) for key, _, width in COLUMNS)
    return f"case \"$*\" in *--Format*) echo '{line}';; *--name*) echo \"$*\" >&2; echo '8|RUNNING';; *) echo {state};; esac"


def test_a_job_of_a_killed_snakemake_is_waited_for(run: Run, tmp_path: Path) -> None:
    done = run(SUBMIT, "echo 9", squeue=in_queue(Path.cwd()))
    assert (done.returncode, done.stdout) == (0, "8\n")
    assert "job 8 is in the queue already" in done.stderr
    asked = run(STATUS_QUERY, in_queue(Path.cwd()).replace("*--name*", "*uuid-1,uuid-0*"))
    assert asked.stdout == "8|RUNNING\n"


def test_of_an_attempt_that_is_over_and_its_retry_the_retry_is_waited_for(run: Run) -> None:
    lines = [in_queue(Path.cwd(), job_id=job_id).split("'")[1] for job_id in ("7", "8")]
    squeue = f"case \"$*\" in *--Format*) echo '{lines[0]}'; echo '{lines[1]}';; *7*) echo CANCELLED;; *) echo RUNNING;; esac"
    done = run(SUBMIT, "echo 9", squeue=squeue)
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr


def test_a_job_that_was_submitted_elsewhere_is_named_and_none_submitted(run: Run) -> None:
    done = run(SUBMIT, "echo 9", squeue=in_queue(Path("/elsewhere")))
    assert (done.returncode, done.stdout) == (1, "")
    assert "job 8 for the same is in the queue already, submitted in /elsewhere" in done.stderr
    assert run(SUBMIT, "echo 9", squeue=in_queue(Path("/elsewhere"), "COMPLETED")).stdout == "9\n"


@pytest.mark.parametrize("command", ["srun", "scontrol"])
def test_in_a_job_slurms_own_command_runs_and_knows_its_cluster(run: Run, command: str) -> None:
    done = run((command, "show", "job", "a b"), 'echo "$SLURM_CONF"; printf "%s|" "$@"', in_job=True, SLURM_CONF="/etc/here")
    assert done.stdout == "/etc/here\nshow|job|a b|"


def test_every_stand_in_runs_this_python(tmp_path: Path) -> None:
    for path in Path(IN_MAIN).iterdir():
        assert os.access(path, os.X_OK), path
        assert path.read_text().endswith(f' -P -m cluster.schedulers.slurm.patient {path.name} "$@"\n')
    assert patient_environ({}, submitter(tmp_path))["SLIPWAY_PATIENT_PYTHON"] == sys.executable
