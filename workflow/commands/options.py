"""Declare the options that several commands have, and the class of all commands."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from base.errors import SlipwayError

DEFAULT_STUDY: Final = Path("config/study.yaml")
CLOSED_PIPE: Final = 141
"""The exit code of a program that SIGPIPE ends: nobody reads what it prints any more."""


class Command(TyperCommand):
    """A command whose errors propose whole commands: with the site and the study that were typed."""

    allow_extra_args = True
    """Words that are too many are refused by parse_args."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse words that are too many."""
        try:
            left = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, which typer asks about a list of words
            raise
        if left:
            from workflow.commands.run import WrongUsage

            raise WrongUsage(f"{ctx.command_path} takes fewer words: leave out {shlex.join(left)}, or type a command for each", ctx)
        return left

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise SystemExit(CLOSED_PIPE) from None
        except SlipwayError as error:
            from workflow.commands.chosen_study import whole_commands

            error.args = (whole_commands(str(error), ctx.params),)
            raise


class PassingCommand(Command):
    """A command that takes the options of another program too, and passes them on."""

    ignore_unknown_options = True


StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.", show_default=True)]
StudyOption = Annotated[Path, typer.Option("--study", "-s", help="The study file.")]
SiteOption = Annotated[
    str | None,
    typer.Option(
        "--site",
        help="Name or path of a site file; default: $SLIPWAY_SITE, else the site `default`, else site.yaml beside the study.",
    ),
]
RetryOption = Annotated[str | None, typer.Option("--retry", metavar="failed", help="`failed`: also the runs that failed.")]
AdoptOption = Annotated[bool, typer.Option("--adopt", help="Results of another study file of this name become this file's.")]
PlacesArgument = Annotated[list[Path] | None, typer.Argument(metavar="[STUDY | DIR...]", help="The study file, or results directories.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def snakemake_config(site: str | None, retry: str | None, adopt: bool) -> dict[str, str]:
    """Return our options by the keys of snakemake's --config that they mean."""
    given = {"site": site, "retry": retry, "adopt": "yes" if adopt else None}
    return {key: word for key, word in given.items() if word is not None}
