"""Show whom a study tells of its end, for `slipway notify`; with --test they are told something now."""

from __future__ import annotations

import os
from pathlib import Path

from base.errors import ConfigError, SlipwayError
from workflow.commands.chosen_study import told_study
from workflow.commands.watching import output
from workflow.dag.notify import News, tell


def main(path: Path, site: str | None, test: bool) -> None:
    """Say who is told, or tell them. Raises ConfigError where nobody is, SlipwayError where somebody could not be told."""
    study = told_study(path, site)
    notify = study.notify
    if notify is None:
        raise ConfigError(f"neither {study.path} nor the site {study.site_words} has the key notify; see docs/site-file.md")
    webhook = f"${notify.webhook_env}" if notify.webhook_env else notify.webhook_file
    who = [*(f"mail to {address}" for address in notify.mail), *([f"the webhook whose URL is in {webhook}"] if webhook else [])]
    output.line(f"{study.name} tells at its {' and at its first '.join(notify.when)}: {', '.join(who)}")
    if not test:
        output.line(f"try it: {study.command('notify', str(path), '--test')}")
        return
    lines = (f"A test by `slipway notify --test` on {os.uname().nodename}.", f"study: {study.path}")
    problems = tell(notify, News(subject=f"{study.name}: a test", lines=lines), os.environ)
    if problems:
        raise SlipwayError("; ".join(problems))
    output.line("handed over; whether a mail arrives, its mail server decides" if notify.mail else "the webhook has taken it")
