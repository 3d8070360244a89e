"""Show whom a study tells of its end, for `slipway notify`; with --test they are told something now."""

import os
from typing import Annotated

import typer

from base.errors import ConfigError, SlipwayError
from workflow.commands.chosen_study import load_chosen_study
from workflow.commands.options import DEFAULT_STUDY, SiteOption, StudyArgument
from workflow.commands.watching import output
from workflow.dag.notify import Notification, send_all
from workflow.study.next_command import command
from workflow.study.study import Study


def main(
    study: StudyArgument = DEFAULT_STUDY,
    site: SiteOption = None,
    test: Annotated[bool, typer.Option("--test", help="Tell them something now.")] = False,
) -> None:
    """Say who is notified of the end of a study, by `notify` of its file or the site's.

    With --test it sends a notification now, and ends with an error that names those whom it could not reach.
    """
    _notify(load_chosen_study(study, site), test)


def _notify(study: Study, test: bool) -> None:
    """Raise ConfigError where nobody is told, SlipwayError where somebody could not be told."""
    notify = study.notify
    if notify is None:
        raise ConfigError(f"neither {study.path} nor the site {study.site_words} has the key notify; see docs/reference/site-file.md")
    webhook = f"${notify.webhook_env}" if notify.webhook_env else notify.webhook_file
    who = [*(f"mail to {address}" for address in notify.mail), *([f"the webhook whose URL is in {webhook}"] if webhook else [])]
    output.line(f"{study.name} tells at its {' and at its first '.join(notify.when)}: {', '.join(who)}")
    if not test:
        output.line(f"try it: {command(study, 'notify', '--test')}")
        return
    lines = (f"A test by `slipway notify --test` on {os.uname().nodename}.", f"study: {study.path}")
    problems = send_all(notify, Notification(subject=f"{study.name}: a test", lines=lines), os.environ)
    if problems:
        raise SlipwayError("; ".join(problems))
    output.line("handed over; whether a mail arrives, its mail server decides" if notify.mail else "the webhook has taken it")
