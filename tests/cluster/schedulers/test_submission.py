"""One job for one submission, whatever the scheduler said. Slurm's commands are stand-ins on PATH; nobody sleeps."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from base.errors import SchedulerOutputError, SubmitError
from base.process import CommandResult
from cluster.schedulers.jobs import QueuedJob
from cluster.schedulers.lsf.answers import LSF
from cluster.schedulers.queries import Server, parse_job_id, submit_script
from cluster.schedulers.sge.answers import SGE
from cluster.schedulers.slurm.answers import SLURM
from tests.cluster.builders import write_command

pytestmark = pytest.mark.processes

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


class Controller:
    """sbatch on PATH whose answers are listed, and a queue to look into."""

    def __init__(self, root: Path, answers: list[str], queue: list[str | None]) -> None:
        self.root, self.queue = root, queue
        self.looks = 0
        self.patience: list[float] = []
        for number, answer in enumerate(answers, start=1):
            (root / f"answer-{number}").write_text(answer)
        write_command(root / "sbatch", f'cat > {root}/script\necho x >> {root}/calls\n. "{root}/answer-$(grep -c x {root}/calls)"')

    def jobs_named(self, name: str, patience_s: float) -> list[QueuedJob]:
        self.looks += 1
        self.patience.append(patience_s)
        job_id = self.queue.pop(0)
        return [] if job_id is None else [QueuedJob(job_id=job_id, stage="waits", state="pending", name=name)]

    def submit(self, patience_s: float = 60.0) -> str:
        return submit_script(SLURM, "one", "#!/bin/bash\n", self.jobs_named, patience_s, lambda seconds: None)

    @property
    def calls(self) -> int:
        return len((self.root / "calls").read_text().split())


ACCEPTED = "echo 42"
SILENT = f"echo '{TIMED_OUT}' >&2; exit 1"
REFUSED = "echo 'sbatch: error: invalid partition specified: nowhere' >&2; exit 1"

Make = Callable[[list[str], list[str | None]], Controller]


@pytest.fixture
def controller(commands: Path) -> Make:
    return lambda answers, queue: Controller(commands, answers, queue)


def test_an_answer_is_the_job(controller: Make) -> None:
    slurm = controller([ACCEPTED], [])
    assert slurm.submit() == "42"
    assert (slurm.calls, slurm.looks) == (1, 0)
    assert (slurm.root / "script").read_text() == "#!/bin/bash\n"


def test_a_job_inherits_what_it_needs_and_no_secret(controller: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SLIPWAY_TOKEN", "MY_DATA"):
        monkeypatch.setenv(name, "hidden")
    for name in ("LC_TIME", "BASH_FUNC_module%%", "SLIPWAY_SITE", "NCCL_DEBUG", "HOME"):
        monkeypatch.setenv(name, "seen")
    slurm = controller(['cat /proc/$$/environ > "${0%/*}/env"; echo 42'], [])
    assert slurm.submit() == "42"
    told = dict(entry.split("=", 1) for entry in (slurm.root / "env").read_text().split("\0") if entry)
    assert "hidden" not in told.values()
    assert {"LC_TIME", "BASH_FUNC_module%%", "SLIPWAY_SITE", "NCCL_DEBUG", "HOME"} <= {
        name for name, value in told.items() if value == "seen"
    }
    assert told["PATH"] == os.environ["PATH"]


def test_a_timed_out_sbatch_that_was_accepted_is_found_and_not_repeated(controller: Make, capsys: pytest.CaptureFixture[str]) -> None:
    slurm = controller([SILENT, ACCEPTED], ["41"])
    assert slurm.submit() == "41"
    assert slurm.calls == 1
    assert "got no answer" in capsys.readouterr().err


def test_a_slow_controller_is_asked_twice_before_a_second_try(controller: Make) -> None:
    slurm = controller([SILENT, ACCEPTED], [None, "41"])
    assert slurm.submit() == "41"
    assert (slurm.calls, slurm.looks) == (1, 2)


def test_what_is_not_in_the_queue_is_submitted_again(controller: Make) -> None:
    slurm = controller([SILENT, ACCEPTED], [None, None])
    assert slurm.submit() == "42"
    assert slurm.calls == 2


def test_a_refusal_is_said_and_not_repeated(controller: Make) -> None:
    slurm = controller([REFUSED, ACCEPTED], [])
    with pytest.raises(SubmitError, match="invalid partition specified: nowhere"):
        slurm.submit()
    assert slurm.calls == 1


def test_patience_ends_only_after_the_queue_was_looked_at(controller: Make) -> None:
    slurm = controller([SILENT], [None, None])
    with pytest.raises(SubmitError, match="not in the queue"):
        slurm.submit(patience_s=0.0)
    assert slurm.looks == 2


def test_who_waits_for_ever_looks_for_ever(controller: Make) -> None:
    slurm = controller([SILENT, ACCEPTED], [None, "41"])
    assert slurm.submit(patience_s=math.inf) == "41"
    assert slurm.patience == [math.inf, math.inf]


def test_a_job_that_nobody_can_confirm_is_not_submitted_again(controller: Make, tmp_path: Path) -> None:
    slurm = controller([SILENT, ACCEPTED], [])

    def silent(name: str, patience_s: float) -> list[QueuedJob]:
        raise SchedulerOutputError("still silent")

    slurm.jobs_named = silent  # type: ignore[method-assign]
    with pytest.raises(SubmitError, match="it is not known whether Slurm's controller accepted job one"):
        slurm.submit()
    assert slurm.calls == 1


@pytest.mark.parametrize(
    "text", ["42\n", "42;cluster\n", "welcome to the machine\n42\n", "Job <42> is submitted to default queue <normal>.\n"]
)
def test_job_ids(text: str) -> None:
    server = LSF if "<" in text else SLURM
    assert parse_job_id(server, CommandResult(argv=("x",), returncode=0, stdout=text, stderr="")) == "42"


@pytest.mark.parametrize("server", [LSF, SGE, SLURM], ids=lambda server: server.title)
@pytest.mark.parametrize("text", ["", "ok\n", "Submitted batch job 42\n"])
def test_no_job_id(server: Server, text: str) -> None:
    with pytest.raises(SubmitError, match="named no job"):
        parse_job_id(server, CommandResult(argv=("x",), returncode=0, stdout=text, stderr=""))
