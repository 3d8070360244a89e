"""`slipway submit`: the script of a study, and what is refused before anything is submitted. Slurm's commands are stand-ins on PATH."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Timer

import pytest

from base.errors import SubmitError
from base.lock import LockFile
from cluster.holder import holder_of
from cluster.runtime import runtime_directory
from cluster.schedulers.jobs import RUN, Work, mark_of, work_words
from tests.workflow.commands.conftest import House, Queue, Said, queued
from workflow.commands.watching import output
from workflow.run.storage.lease import acquire, new_lease
from workflow.study.publishing import publish_resolved

pytestmark = pytest.mark.processes

Tree = Callable[[Path], dict[str, int]]


@pytest.fixture
def submit(house: House) -> Callable[..., Said]:
    """`slipway submit` on a site with Slurm."""
    house.on_slurm("queue: main\n")
    return partial(house, "submit")


def finish(house: House, status: str = "ok") -> None:
    for run in house.load().runs:
        house.record(run.run_id, status, result_number=1)


def test_the_script_is_shown_and_nothing_written(house: House, queue: Queue, submit: Callable[..., Said], tree: Tree) -> None:
    before = tree(house.root)
    said = submit("--print")
    assert said.code == 0, said.err
    assert tree(house.root) == before
    assert queue.script is None
    lines = said.out.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "#SBATCH --nodes=2" in lines
    assert "#SBATCH --partition=main" in lines
    assert lines[-1].startswith("exec ")
    assert f"--configfile {house.path} --config site={house.site} --resources nodes=2" in lines[-1]


def test_repeats_on_different_nodes(house: House, submit: Callable[..., Said]) -> None:
    said = submit("--spread", "--print")
    assert said.code == 0, said.err
    repeats = house.load().repeats
    assert f"#SBATCH --nodes={2 * repeats}" in said.out.splitlines()
    assert f"export SLIPWAY_NODE_SETS={repeats}" in said.out.splitlines()


def test_one_job_is_submitted_and_named(house: House, queue: Queue, submit: Callable[..., Said]) -> None:
    said = submit("--nodes", "4")
    assert said.code == 0, said.err
    assert queue.script is not None
    assert "#SBATCH --nodes=4" in queue.script
    assert re.search(r"^export SLIPWAY_LOGIN_S=\d+\.\d{3}$", queue.script, re.M)
    name = next(line for line in queue.script.splitlines() if "--job-name" in line).partition("=")[2]
    assert f"job 42 ({name}): 8 runs on 4 nodes" in said.out
    assert f"\nresults: {house.load().results_dir}\n" in said.out
    log = house.load().results_dir / "logs" / f"{name}-42.log"
    assert f"log: {log}" in said.out
    assert log.parent.is_dir()


def test_a_job_beside_others_of_the_same_study_is_refused(house: House, queue: Queue, submit: Callable[..., Said]) -> None:
    study = house.load()
    works = [Work(mark=mark_of(name, str(study.results_dir)), rule=RUN, wildcards=study.runs[0].run_id) for name in ("other", study.name)]
    runs = [{"job_id": str(7 + index), "state": "RUNNING", "comment": work_words(work)} for index, work in enumerate(works)]
    whole = [{"job_id": "8", "state": "PENDING", "name": "slipway-small-0badcafe"}, {"job_id": "9", "name": "slipway-other-0badcafe"}]
    for jobs, words in ((runs, "which is running"), (whole, "the first 8 (slipway-small-0badcafe), which is pending")):
        queue.shows(*(queued(**job) for job in jobs))
        said = submit()
        assert said.code == 12
        for text in ("the study 'small' has 1 job of slipway submit or slipway run in the queue already", words, "`scancel 8`"):
            assert text in " ".join(said.err.split())
        assert queue.script is None


def test_runs_that_another_start_has_are_no_reason_for_a_job(house: House, queue: Queue, submit: Callable[..., Said]) -> None:
    """As one of another user in a shared storage, whose jobs this user does not see in the queue."""
    study = house.load()
    holder = holder_of(os.getpid(), "local", "here", 0)
    for run in study.runs:
        run_dir = study.results_dir / "runs" / run.run_id
        run_dir.mkdir(parents=True)
        acquire(run_dir, lambda _found: new_lease(holder, 1), lambda _holder: True, str)
    said = submit()
    assert (said.code, queue.script) == (12, None)
    assert "8 runs are at work in another start: " in said.err
    assert "no other run is left to do, so nothing is submitted" in " ".join(said.err.split())
    (study.results_dir / "runs" / study.runs[0].run_id / "lease.json").unlink()
    said = submit()
    assert said.code == 0, said.err
    assert "7 runs are at work in another start: " in said.err
    assert queue.script is not None


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.usefixtures("submit")
def test_a_submission_that_is_waited_for_ends_as_a_run_does(house: House, queue: Queue, complete: bool) -> None:
    study = house.load()
    publish_resolved(study)
    finish(house)
    runs = study.results_dir / "runs"
    last = runs / study.runs[-1].run_id / "record.json"
    page = study.results_dir / "report.html"
    if complete:
        page.write_text("made by the job")
    else:
        last.unlink()
    runs.rename(house.root / "made")
    queue.command("sbatch", f"cat > /dev/null; mv {house.root}/made {runs}; echo 42")
    argv = [sys.executable, "-m", "workflow.commands.main", "submit", str(house.path), "--site", str(house.site), "--wait"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == (0 if complete else 19), done
    _, ended, table = done.stdout.partition("job 42 has ended (gone); ")
    assert ended, done
    assert "speed-up" in table.lower(), done
    assert f"report: {page}" in table, done
    assert (page.read_text() == "made by the job") == complete
    assert ("1 run has no result; go on: slipway submit " in table) != complete, done


@pytest.mark.parametrize(
    ("does", "words"),
    [("echo 'sbatch: error: invalid partition specified: main' >&2; exit 1", "invalid partition specified"), ("echo yes", "named no job")],
    ids=["a refusal", "no number of a job"],
)
def test_an_answer_that_names_no_job_is_said(house: House, queue: Queue, submit: Callable[..., Said], does: str, words: str) -> None:
    """The directory of the log stays: Slurm may have taken the job, and ends one at once whose log it cannot write."""
    queue.command("sbatch", f"cat > /dev/null; {does}")
    said = submit()
    assert said.code == SubmitError.exit_code
    assert words in said.err
    left = house.load().results_dir
    assert [path.relative_to(left) for path in left.rglob("*")] == [Path("logs")]


def test_a_submission_that_is_asked_for_again_is_done_once(house: House, queue: Queue, submit: Callable[..., Said]) -> None:
    """`slipway remote` asks again, since a cut of the line kept the answer from it."""
    said = submit("--token", "0a1b2c3d")
    assert said.code == 0, said.err
    assert "job 42 (slipway-small-0a1b2c3d): 8 runs" in said.out
    queue.shows(queued(job_id="42", state="RUNNING", name="slipway-small-0a1b2c3d"))
    queue.command("sbatch", "exit 1")
    again = submit("--token", "0a1b2c3d")
    assert again.code == 0, again.err
    assert "job 42 (slipway-small-0a1b2c3d) was submitted by this command before, and is running" in again.out


def test_a_submission_says_that_it_waits_for_another_one(house: House, queue: Queue, submit: Callable[..., Said]) -> None:
    notice = output.notice
    with LockFile(runtime_directory() / f"submit-{house.load().name}.lock") as lock:

        def end_the_other(text: str) -> None:
            without_notice.cancel()
            notice(text)
            lock.unlock()

        without_notice = Timer(60.0, lock.unlock)
        without_notice.start()
        lock.take()
        house.patch.setattr(output, "notice", end_the_other)
        said = submit()
    assert "another command of yours submits the study" in said.err
    assert (said.code, queue.script is not None) == (0, True)


def test_failed_runs_are_submitted_when_asked(house: House, queue: Queue, submit: Callable[..., Said]) -> None:
    finish(house, "oom")
    said = submit()
    assert said.code == 0, said.err
    assert "nothing is left to do: small: 8 of 8 runs have a result" in said.out
    assert queue.script is None
    said = submit("--retry", "failed")
    assert said.code == 0, said.err
    assert queue.script is not None
    assert "retry=failed" in queue.script


def test_what_snakemake_would_refuse_is_refused(house: House, queue: Queue, submit: Callable[..., Said]) -> None:
    house.study(limits={"walltime": "1h", "gpu_hours": 1})
    house.site.write_text(house.site.read_text().replace("device: cpu", "device: cuda"))
    said = submit()
    assert said.code == 10
    assert "GPU hours" in said.err
    assert submit("--retry", "everything").code == 10
    assert queue.script is None


@pytest.mark.usefixtures("queue", "submit")
def test_the_plan_says_what_slurm_would_be_asked(house: House) -> None:
    found = house.json("plan")["slurm"]
    assert sorted(kind["jobs"] for kind in found["jobs"]) == [4, 4]
    two = next(kind["sbatch"] for kind in found["jobs"] if "--nodes=2" in kind["sbatch"])
    for option in ("--partition=main", "--mem=0", "--ntasks-per-node=1", "--exclusive", "--time=00:33:00"):
        assert f" {option} " in two
    assert "--job-name=slipway-small-<token>" in found["submit"]["sbatch"]
    cell = house.load().cells[0].cell_id
    assert "sbatch --job-name=slipway-" in house.json("plan", "--cell", cell)["slurm"]["sbatch"]
    assert f"sbatch --job-name=slipway-{cell}-r1.<token> --nodes=" in house("plan", "--cell", cell).out


def test_images_are_pinned_before_anything_is_queued(house: House, queue: Queue, submit: Callable[..., Said]) -> None:
    """docker's client is a stand-in: what it says is what the real one says without a daemon, and of an image that nobody has."""
    house.site.write_text(house.site.read_text() + "engine: docker\n")
    queue.command("docker", '[ "$1" = info ] && exit 0; echo "Error: No such image: x" >&2; exit 1')
    refused = submit()
    assert refused.code == 16
    assert "is not on this machine, and docker cannot pull it" in refused.err
    assert queue.script is None
    queue.command("docker", 'echo "Cannot connect to the Docker daemon" >&2; exit 1')
    left = submit()
    assert left.code == 0, left.err
    assert "does not answer here: Cannot connect to the Docker daemon; the first node of the job pins the images" in left.out
    assert queue.script is not None
