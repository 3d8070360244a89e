"""One way of asking for all schedulers: what each one's commands say of a server that is silent, and of a machine without a cluster."""

import os
from pathlib import Path

import pytest

from base.errors import NoScheduler, SchedulerOutputError, SchedulerSilent, SubmitError
from base.process import CommandResult
from cluster.schedulers.lsf.answers import LSF
from cluster.schedulers.pbs.answers import PBS
from cluster.schedulers.queries import Server, ask, complains_only_of, last_words, one_try, refusal_words, silence_of, version_of
from cluster.schedulers.sge.answers import SGE
from cluster.schedulers.slurm.answers import SLURM
from tests.cluster.builders import write_command

SILENT = {
    "lsf": (LSF, "LSF's mbatchd", "batch daemon not responding ... still trying"),
    "pbs": (PBS, "the server of PBS", "Connection refused\nqstat: cannot connect to server n0 (errno=111)"),
    "sge": (
        SGE,
        "Grid Engine's qmaster",
        'error: got select error (Connection refused)\nunable to send message to qmaster using port 6444 on host "n0"',
    ),
    "slurm": (SLURM, "Slurm's controller", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
}
NOWHERE = {
    "lsf": (LSF, "Cannot open lsf.conf file", "belongs to no cluster of LSF"),
    "pbs": (PBS, "Unknown Host.\nqstat: cannot connect to server nope (errno=15008)", "knows no server of PBS"),
    "sge": (SGE, "critical error: Please set the environment variable SGE_ROOT.\nExiting.", "belongs to no cell of Grid Engine"),
    "slurm": (SLURM, "squeue: fatal: Could not establish a configuration source", "belongs to no Slurm cluster"),
}


def said(stderr: str, stdout: str = "", returncode: int = 1) -> CommandResult:
    return CommandResult(argv=("x",), returncode=returncode, stdout=stdout, stderr=stderr)


@pytest.fixture
def command(commands: Path) -> Path:
    return commands / "slipway-question"


def complaint(words: str) -> str:
    return f"cat >&2 << 'EOF'\n{words}\nEOF\nexit 1"


@pytest.mark.processes
@pytest.mark.parametrize(("server", "name", "words"), SILENT.values(), ids=SILENT)
def test_silence_is_not_taken_for_an_answer_and_after_it_is_asked_again(command: Path, server: Server, name: str, words: str) -> None:
    write_command(command, complaint(words))
    with pytest.raises(SchedulerSilent, match=f"^{name} does not answer `slipway-question -x`, asked for 0 s: "):
        ask(server, ("slipway-question", "-x"), 0.0)
    assert silence_of(server, said(words, returncode=0)) == ""
    away = command.with_name("away")
    away.touch()
    write_command(command, f"[ ! -e {away} ] && exec echo yes\nrm {away}\n{complaint(words)}")
    assert ask(server, ("slipway-question",), 60.0) == "yes\n"


@pytest.mark.processes
@pytest.mark.parametrize(("server", "words", "what"), NOWHERE.values(), ids=NOWHERE)
def test_a_machine_without_a_cluster_is_told_so_and_what_to_do_and_not_asked_again(
    command: Path, server: Server, words: str, what: str
) -> None:
    assert silence_of(server, said(words)) == ""
    told = refusal_words(server, said(words))
    assert told.startswith(f"this machine {what} that `x` could ask (")
    assert server.advice in told
    assert "\n" not in told
    write_command(command, complaint(words))
    with pytest.raises(NoScheduler, match=what):
        ask(server, ("slipway-question",), 60.0)
    command.unlink()
    with pytest.raises(NoScheduler, match=f"^{server.title} has no command `slipway-question` on this machine: ") as refused:
        ask(server, ("slipway-question",), 60.0)
    assert server.advice in str(refused.value)


@pytest.mark.processes
@pytest.mark.parametrize("server", [LSF, PBS, SGE, SLURM], ids=lambda server: server.title)
def test_a_refusal_a_missing_command_and_one_that_hangs(command: Path, server: Server) -> None:
    write_command(command, "echo 'nothing of the kind' >&2\nexit 3")
    with pytest.raises(SchedulerOutputError, match="nothing of the kind") as refused:
        ask(server, ("slipway-question",), 60.0)
    assert type(refused.value) is SchedulerOutputError
    with pytest.raises(SubmitError, match="cannot be started"):
        one_try(server, (str(command.with_name("nothing")),), 5.0, error_class=SubmitError)
    write_command(command, "exec sleep 60")
    assert one_try(server, ("slipway-question",), 0.2) == (None, "no answer within 0.2 s")


@pytest.mark.processes
def test_a_question_has_the_servers_environment_and_a_submission_its_own(command: Path) -> None:
    write_command(command, 'echo "$LC_ALL $TZ $SLURM_TIME_FORMAT"; cat')
    assert [ask(server, ("slipway-question",)).strip() for server in (LSF, PBS, SGE, SLURM)] == ["C", "C UTC", "C", "C  %s"]
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "tlh"}
    for server in (LSF, PBS, SGE, SLURM):
        result, _ = one_try(server, ("slipway-question",), 20.0, "the script", env=environ)
        assert result is not None
        assert result.stdout == "tlh  \nthe script"


@pytest.mark.processes
def test_the_version_is_optional(command: Path) -> None:
    for said, version in (
        ("slurm-wlm 22.05.8", "22.05.8"),
        ("slurm 24.05.3-1", "24.05.3-1"),
        ("pbs_version = 23.06.06", "23.06.06"),
        ("", None),
    ):
        write_command(command, f"echo '{said}'")
        assert version_of(SLURM, (command.name,)) == version
    write_command(command, "echo 22.05.8\nexit 1")
    assert version_of(SLURM, (command.name,)) is None
    command.unlink()
    assert version_of(SLURM, (command.name,)) is None


def test_what_is_harmless_of_all_that_is_complained_of() -> None:
    assert complains_only_of(said("Job <1> is not found\n\nJob <2>: Job has already finished\n"), LSF.harmless)
    assert not complains_only_of(said("Job <1> is not found\nJob <2>: User permission denied\n"), LSF.harmless)
    assert not complains_only_of(said(""), LSF.harmless)


def test_the_words_that_say_something() -> None:
    assert last_words(SGE, said("denied\nExiting.\n", "Unable to run job\n")) == "Unable to run job; denied"
    assert last_words(LSF, said("a\na\nb\n")) == "a; b"
    assert last_words(SLURM, said("one\ntwo\n\nthree\n", "not here")) == "two; three"
    assert last_words(PBS, said("")) == "exit code 1"
    told = refusal_words(SGE, said('denied: host "n9" is neither submit nor admin host\n'))
    assert told == 'denied: host "n9" is neither submit nor admin host: ' + SGE.refusals[0][1]
