"""Run `slipway` by the table of all commands. Each declares its options in a module of its own, which is imported when it is called."""

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from base import VERSION, errors, logs, system
from cluster.storage_guard import guarded
from workflow.commands import options

CONTEXT: Final = {"help_option_names": ["-h", "--help"]}


class DeferredCommand(TyperCommand):
    """The name and the short help of a command, whose module is not imported yet."""

    def __init__(self, name: str, function: str, short_help: str, *, hidden: bool = False) -> None:
        super().__init__(name=name, short_help=short_help, hidden=hidden, params=[], rich_markup_mode=None)
        self.module, _, self.function = function.partition(":")

    def load(self) -> Any:
        module = importlib.import_module(self.module)
        found = CommandInfo(name=self.name, callback=getattr(module, self.function), cls=getattr(module, "COMMAND_CLASS", options.Command))
        return get_command_from_info(found, pretty_exceptions_short=False, rich_markup_mode=None)


class Group(TyperGroup):
    """A group of commands, of which only the one that is called is imported."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is called, with its options."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found.load() if isinstance(found, DeferredCommand) else found, rest


def _group(name: str, text: str, *commands: DeferredCommand) -> Group:
    return Group(
        name=name,
        help=text,
        commands={str(one.name): one for one in commands},
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=CONTEXT,
    )


COMMANDS: Final = (
    DeferredCommand("init", "workflow.commands.init:main", "Write a study file and a site file to begin with."),
    DeferredCommand("run", "workflow.commands.run:main", "Run a study: what is finished stays, the rest is made."),
    DeferredCommand("plan", "workflow.commands.plan:main", "What a study will run, need and cost."),
    DeferredCommand("submit", "workflow.commands.submit:main", "Submit one job for all runs of a study."),
    DeferredCommand("status", "workflow.commands.status:main", "How each run of a study stands, with reason and log."),
    DeferredCommand("logs", "workflow.commands.logs:main", "The logs of a run: supervisor, nodes and ranks."),
    DeferredCommand("tables", "workflow.commands.tables:main", "Make the tables from the records, or print one."),
    DeferredCommand("compare", "extras.compare.command:main", "Which cells of two studies differ, and in what."),
    DeferredCommand("verify", "extras.verify.command:main", "Check records, pushed files and numbers again."),
    DeferredCommand("import", "extras.imported.command:main", "Results of other tools, such as MLPerf's, in a table."),
    DeferredCommand("lint-table", "extras.lint_table.command:main", "Find numbers of tables that contradict each other."),
    DeferredCommand("export", "extras.export.command:main", "The runs of a study for another tool, such as TensorBoard."),
    DeferredCommand("profile", "extras.profile.command:main", "Where the time of a step goes: of a study, or from a trace."),
    DeferredCommand("notify", "workflow.commands.notify:main", "Who is told of a study's end; --test tells them now."),
    DeferredCommand("check-frameworks", "workflow.commands.check_frameworks:main", "Whether frameworks train the same networks."),
    DeferredCommand("report", "workflow.commands.tables:report", "Tables, plots and one page that opens without network."),
    DeferredCommand("doctor", "extras.doctor.command:main", "Check a site and say what to do; or write its file."),
    DeferredCommand("gpus", "workflow.commands.gpus:main", "This node's GPUs: granted to whom, and used by whom."),
    DeferredCommand("reap", "workflow.commands.cache:reap", "Deliver or remove what earlier runs left on this node."),
    DeferredCommand("remote", "extras.remote.command:main", "The commands of a cluster, typed on a laptop."),
    DeferredCommand("remote-end", "extras.remote.command_on_cluster:main", "What `slipway remote` asks of the cluster.", hidden=True),
    _group(
        "dataset",
        "Build, look at, check, stage and measure datasets.",
        DeferredCommand("build", "workflow.commands.dataset:build", "Build datasets on network storage."),
        DeferredCommand("info", "workflow.commands.dataset:info", "What a dataset holds, and what was rejected."),
        DeferredCommand("verify", "workflow.commands.dataset:verify", "Hash every chunk of a dataset and compare it with the manifest."),
        DeferredCommand("stage", "workflow.commands.dataset:stage_here", "Bring a dataset into this node's cache."),
        DeferredCommand("bench", "workflow.commands.dataset_bench:bench", "How fast it is read here, and for how many GPUs."),
    ),
    _group(
        "cache",
        "What lies in this node's cache.",
        DeferredCommand("ls", "workflow.commands.cache:ls", "What lies in this node's cache, last used first."),
        DeferredCommand("rm", "workflow.commands.cache:rm", "Remove staged datasets, or what is left of copies."),
    ),
    _group(
        "session",
        "Notebooks, shells, servers and scripts in an allocation.",
        DeferredCommand("shell", "extras.session.command:start", "A shell on a node, in the container if the site has an engine."),
        DeferredCommand("notebook", "extras.session.command:start", "JupyterLab on a node."),
        DeferredCommand("tensorboard", "extras.session.command:start", "TensorBoard, with the runs of a study."),
        DeferredCommand("serve", "extras.session.command:start", "Any program that listens on ports."),
        DeferredCommand("run", "extras.session.command:start", "A command, on each node; what it writes is pushed."),
        DeferredCommand("ls", "extras.session.command:ls", "Sessions, how they stand, and how they are reached."),
        DeferredCommand("attach", "extras.session.command:attach_to", "Enter the shell of a session."),
        DeferredCommand("stop", "extras.session.command:stop", "End sessions."),
    ),
)


def _print_version(given: bool) -> None:
    if given:
        sys.stdout.write(f"slipway {VERSION}\n")
        raise typer.Exit


app = typer.Typer(name="slipway", cls=Group, no_args_is_help=True, rich_markup_mode=None, context_settings=CONTEXT)


@app.callback(help="Training studies on your own cluster: one study file in, checked scalability tables out.")
def slipway(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")] = False,  # noqa: ARG001
) -> None:
    """Declare the options that stand before a command."""


@cache
def parser() -> Any:
    """Return the command line; it is made once, also for who calls run() again and again."""
    group: Any = typer.main.get_command(app)
    for command in COMMANDS:
        group.add_command(command)
    return group


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script. Exits with 0, the code of the error's class, 2 for wrong usage, 1 for a bug of ours."""
    sys.exit(guarded(lambda: _flushed(run(sys.argv[1:] if arguments is None else arguments))))


def _flushed(code: int) -> int:
    """Return `code`, once all is written. Where nobody reads any more (`| head`, a terminal that is gone) Python would end with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            code = code or options.CLOSED_PIPE
    return code


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Our own errors become a message on standard error, never a traceback."""
    logs.private_umask()
    logs.configure("slipway")
    try:
        os.environ.update(system.account_environ(os.environ))
        parser()(args=list(arguments), prog_name="slipway")
    except SystemExit as ended:  # typer's way to return: 0, 2 after it has said what is wrong with the usage, 130 after Ctrl-C
        return ended.code if isinstance(ended.code, int) else 1
    except errors.SlipwayError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _fail(_os_error_text(error), errors.StorageError.exit_code)
    return 0


def _os_error_text(error: OSError) -> str:
    if not error.filename:
        return str(error)
    above = system.inaccessible_parent(os.fsdecode(error.filename)) if isinstance(error, PermissionError) else None
    return f"{error.filename}: {error.strerror}{f': {above}' if above else ''}"


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # the terminal may have gone, and the code is known all the same
        sys.stdout.flush()  # in a pipe or a file that takes both, what was printed before stands before its error
    with suppress(OSError):
        sys.stderr.write(f"slipway: {logs.printable(logs.masked(message))}\n")
    return code


if __name__ == "__main__":
    main()
