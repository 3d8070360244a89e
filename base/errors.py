"""Every error a user can meet, one tree, one exit code per class.

Exit code 1 is a bug of ours, 2 the command line's own usage error.
A message says what was asked, what was found, where, and what to do.
"""

from __future__ import annotations

from typing import ClassVar

from base.sanitize import printable


class SlipwayError(Exception):
    """Base of all errors that end in a message instead of a traceback."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """Return the message, whatever file names and program output are in it, fit to be shown, sent and written."""
        return printable(super().__str__())


class ConfigError(SlipwayError):
    """A study file, a site file or a value on the command line is wrong."""

    exit_code = 10


class UnsupportedRequest(SlipwayError):
    """What was asked is valid, but this scheduler, engine or framework cannot do it."""

    exit_code = 11


class SubmitError(SlipwayError):
    """The scheduler refused the job."""

    exit_code = 12


class SubmitUnsure(SubmitError):
    """The scheduler may have taken the job, and nobody can say it."""


class SchedulerOutputError(SlipwayError):
    """The scheduler answered something that cannot be read."""

    exit_code = 13


class SchedulerSilent(SchedulerOutputError):
    """The scheduler's controller does not answer now; jobs go on without it."""


class NoScheduler(SchedulerOutputError):
    """This machine cannot ask the scheduler: it has no commands of it, belongs to no cluster of it, or may not ask."""


class AllocationError(SlipwayError):
    """What the scheduler granted is not what was asked."""

    exit_code = 14


class StagingError(SlipwayError):
    """The dataset did not reach the node-local cache."""

    exit_code = 15


class NotEnoughSpace(StagingError):
    """Bytes or inodes are missing; the message says how many and where."""


class DigestMismatch(StagingError):
    """Bytes differ from what the manifest promises."""


class ContainerError(SlipwayError):
    """The image or the container engine failed."""

    exit_code = 16


class TrainingFailed(SlipwayError):
    """The training program failed by itself."""

    exit_code = 17


class PushError(SlipwayError):
    """The result did not reach network storage; it stays on the node."""

    exit_code = 18


class StorageFull(PushError):
    """Storage has no room for the files, which waiting does not change."""


class RecordError(SlipwayError):
    """A record is missing, unreadable or contradicts itself."""

    exit_code = 19


class DatasetError(SlipwayError):
    """The source of a dataset, or its build, is at fault."""

    exit_code = 20


class LeaseError(SlipwayError):
    """A run or a dataset is held by somebody who is alive."""

    exit_code = 21


class RunHeld(LeaseError):
    """Whoever holds the run lives: its end can be waited for."""


class StorageError(SlipwayError):
    """Network storage does not answer in time, or answers with an error."""

    exit_code = 22


class Killed(SlipwayError):
    """A process of the run was killed from outside, without evidence of memory."""

    exit_code = 23


class NodeLost(SlipwayError):
    """A node program went away or does not answer."""

    exit_code = 24


class Preempted(SlipwayError):
    """The scheduler took the allocation back."""

    exit_code = 25


class Cancelled(SlipwayError):
    """The run was ended by a signal or by the end of what started it."""

    exit_code = 26


class Defect(SlipwayError):
    """Slipway itself did what it should never do; the message says what, the log has the traceback. To try again changes nothing."""

    exit_code = 27


class RemoteError(SlipwayError):
    """A host cannot be reached by SSH, or does not do what was asked there."""

    exit_code = 28


class LineCut(RemoteError):
    """The line was lost, or the host is not reached now; what was asked may have been done, and the same again goes on."""


class Slower(SlipwayError):
    """What was compared is slower than the margin allows."""

    exit_code = 29


class Undecided(SlipwayError):
    """The runs are too few, or differ too much, to tell whether a margin is kept."""

    exit_code = 30


def error_of_exit(code: int, default: type[SlipwayError]) -> type[SlipwayError]:
    """Return the class of this tree that has this exit code, or `default`."""
    found = (kind for kind in SlipwayError.__subclasses__() if kind.exit_code == code != SlipwayError.exit_code)
    return next(found, default)


def error_named(name: str, default: type[SlipwayError] = SlipwayError) -> type[SlipwayError]:
    """Return the class of this tree that has this name, or `default`."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, SlipwayError) else default
