"""What to type to go on with a study: the whole command, quoted, since people copy it from the screen. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflow.study.study import Study


def command(study: Study, verb: str = "run", *options: str) -> str:
    """`slipway run photos.yaml --adopt --site here.yaml`. The site is named where it was chosen, by option or variable."""
    return study.command(verb, str(study.path), *options)


def retry_command(study: Study, verb: str = "run") -> str:
    """The same for runs that failed."""
    return command(study, verb, "--retry", "failed")
