"""Define every error a user can meet, one tree, one exit code per class.

Exit code 1 is a bug of ours, 2 the command line's own usage error.
A message says what was asked, what was found, where, and what to do.
"""

from typing import ClassVar

from base.sanitize import printable


class SlipwayError(Exception):
    """A child process failed in a way that no other class names, or Slipway has a bug.

    Read the message. If there is a traceback, report it.
    """

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """Return the message, whatever file names and program output are in it, fit to be shown, sent and written."""
        return printable(super().__str__())


class ConfigError(SlipwayError):
    """A study file, a site file, a framework.yaml or a value on the command line is wrong, or names a run or cell that does not exist;
    or `slipway doctor` found an error.

    The message names file, line, key and the closest valid word.
    """

    exit_code = 10


class UnsupportedRequest(SlipwayError):
    """The request is valid, but this scheduler, engine or framework does not support it.

    Change the cell, or exclude it. The message lists what is supported.
    """

    exit_code = 11


class SubmitError(SlipwayError):
    """The scheduler refused the job, and the message has its answer.

    No job was submitted. Correct what the answer says.
    """

    exit_code = 12


class SubmitUnsure(SubmitError):
    """The scheduler may have accepted the job: it did not answer, or named no job.

    Look for the job in the queue before you submit again.
    """


class SchedulerOutputError(SlipwayError):
    """The scheduler answered something that Slipway cannot read.

    The message has the answer.
    """

    exit_code = 13


class SchedulerSilent(SchedulerOutputError):
    """The scheduler's controller does not answer now. Jobs go on.

    Wait, then type the same command again.
    """


class NoScheduler(SchedulerOutputError):
    """This machine cannot ask the scheduler: its commands are missing, no cluster is configured, or this host has no permission.

    Use a login node, load the scheduler's module, or choose a site with `scheduler: local`. `slipway doctor` says what is here.
    """


class AllocationError(SlipwayError):
    """The scheduler granted something else than the run asked for: no GPU or fewer GPUs, a GPU that does not exist or was lost, several
    GPUs without saying which, or a GPU that somebody else uses (`foreign_gpu: refuse`).

    Write `device: cpu` in the site file, ask for fewer GPUs, or look at `slipway gpus --explain`.
    """

    exit_code = 14


class StagingError(SlipwayError):
    """The dataset did not reach the node-local cache: it is not built, the cache directory cannot be used, or staging died.

    Check `cache.path` of the site file, or build the dataset.
    """

    exit_code = 15


class NotEnoughSpace(StagingError):
    """Bytes or inodes are missing on the node or on storage. This is checked before the first byte.

    Make room, or change `cache.path` or `cache.max_bytes`. The message says how much is missing and who uses the rest.
    """


class DigestMismatch(StagingError):
    """Bytes differ from those of the manifest, also when they are read again.

    Run `slipway dataset verify`. Remove that dataset and build it again.
    """


class ContainerError(SlipwayError):
    """The program cannot be started, because of interpreter, image or engine.

    The message names argv and reason.
    """

    exit_code = 16


class TrainingFailed(SlipwayError):
    """The training program failed by itself. This class travels from a node program to its supervisor; the failed run is a row of the
    tables, and the command ends with 0."""

    exit_code = 17


class PushError(SlipwayError):
    """The result did not reach storage: it changed on the way, or storage has another content under the same name. The result stays on
    the node.

    Make room or raise the quota. `slipway cache ls` shows the result, `slipway reap --push` delivers it.
    """

    exit_code = 18


class StorageFull(PushError):
    """Storage has no room or no quota for the result, which stays on the node.

    As for `PushError`.
    """


class RecordError(SlipwayError):
    """A record, study.json or a trace is missing, torn or contradicts itself. Also: `slipway tables --strict` with runs that are not ok,
    `slipway verify` and `slipway lint-table` with findings.

    The message names the file. Remove it, and the step that writes it runs again.
    """

    exit_code = 19


class DatasetError(SlipwayError):
    """The source of a dataset or its build is at fault, or a manifest is not valid.

    The message names the file. [Datasets](datasets.md#what-is-rejected) lists what is rejected.
    """

    exit_code = 20


class LeaseError(SlipwayError):
    """Another process holds the run or the dataset and is alive, or an attempt lost its lease.

    Wait, or end the process that the message names.
    """

    exit_code = 21


class RunHeld(LeaseError):
    """Another process holds the run and is alive. Slipway waits for it if no nodes are idle meanwhile.

    As for `LeaseError`.
    """


class StorageError(SlipwayError):
    """Network storage does not answer in time, or answers with an error.

    Check the storage. The same command continues.
    """

    exit_code = 22


class Killed(SlipwayError):
    """A process of the run was killed from outside, without evidence of missing memory.

    Find out who did it. The same command runs it again.
    """

    exit_code = 23


class NodeLost(SlipwayError):
    """A node program ended, or is silent for 30 s.

    The same command runs it again.
    """

    exit_code = 24


class Preempted(SlipwayError):
    """The job ends before the run does, or the scheduler took the nodes back.

    Nothing if the job is requeued. Otherwise the same command resumes from the checkpoint, if there is one.
    """

    exit_code = 25


class Cancelled(SlipwayError):
    """A signal ended the run, or the process that had started it ended.

    The same command runs it again.
    """

    exit_code = 26


class Defect(SlipwayError):
    """Slipway has a bug in a child process, such as the one that makes the record of a run. It is not tried again, and a result stays on
    its nodes.

    Report it with the traceback in the log.
    """

    exit_code = 27


class RemoteError(SlipwayError):
    """A host cannot be reached or used by SSH: its key is unknown or has changed, it refuses the login, or it has no Slipway.

    The message says what to type.
    """

    exit_code = 28


class ConnectionCut(RemoteError):
    """The connection to the host was lost, or the host cannot be reached now.

    The same command continues.
    """


class Slower(SlipwayError):
    """B is slower than the margin of `slipway compare --not-slower-than` allows.

    Look at the cells, and at the fields that differ.
    """

    exit_code = 29


class Undecided(SlipwayError):
    """The runs are too few, or differ too much, for `slipway compare --not-slower-than` to decide.

    Make more runs. The message says how many are enough.
    """

    exit_code = 30


def error_of_exit(code: int, default: type[SlipwayError]) -> type[SlipwayError]:
    """Return the class of this tree that has this exit code, or `default`."""
    found = (kind for kind in SlipwayError.__subclasses__() if kind.exit_code == code != SlipwayError.exit_code)
    return next(found, default)


def error_named(name: str, default: type[SlipwayError] = SlipwayError) -> type[SlipwayError]:
    """Return the class of this tree that has this name, or `default`."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, SlipwayError) else default
