"""`slipway`: names, options and help of every command. The work is in the module of the same name, imported when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from base import VERSION
from base.account import account_environ
from base.errors import SlipwayError, StorageError
from base.inaccessible import obstacle
from base.logs import configure, masked, printable, private_umask
from cluster.guard import guarded
from workflow.commands import completion

DEFAULT_STUDY: Final = Path("config/study.yaml")


GONE: Final = 141
"""The exit code of a program that SIGPIPE ends: who read what we say has gone."""


class Ours(TyperCommand):
    """A command whose errors propose whole commands: with the site and the study that were typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Answer an option that is a key of the study with where that key is written."""
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        typed = [word.partition("=")[0] for word in (args[: args.index("--")] if "--" in args else args) if word.startswith("--")]
        if unknown := [option for option in typed if option not in known]:
            from workflow.commands.run import refuse_keys

            refuse_keys(unknown)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """The command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise SystemExit(GONE) from None
        except SlipwayError as error:
            from workflow.commands.chosen_study import whole_commands

            error.args = (whole_commands(str(error), ctx.params),)
            raise


class PassesOn(Ours):
    """One that hands over all words to another command, with the `--` that stands before a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The first `--` is taken away by whoever parses, so there are two."""
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*args[:end], *args[end : end + 1], *args[end:]])


app = typer.Typer(
    name="slipway",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
dataset_app = typer.Typer(help="Build, look at, check and stage datasets.", no_args_is_help=True, rich_markup_mode=None)
cache_app = typer.Typer(help="What lies in this node's cache.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(dataset_app, name="dataset")
app.add_typer(cache_app, name="cache")
session_app = typer.Typer(help="Notebooks, shells, servers and scripts in an allocation.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(session_app, name="session")


def _runs(context: typer.Context, incomplete: str) -> list[str]:
    return completion.runs(context.params, os.environ, incomplete)


StudyArgument = Annotated[
    Path, typer.Argument(metavar="STUDY", help="The study file.", show_default=True, autocompletion=completion.studies)
]
StudyOption = Annotated[Path, typer.Option("--study", "-s", help="The study file.", autocompletion=completion.studies)]
SiteOption = Annotated[
    str | None,
    typer.Option(
        "--site",
        help="Name or path of a site file; default: $SLIPWAY_SITE, else the site `default`, else site.yaml beside the study.",
        autocompletion=completion.sites,
    ),
]
RetryOption = Annotated[str | None, typer.Option("--retry", metavar="failed", help="`failed`: also the runs that failed.")]
AdoptOption = Annotated[bool, typer.Option("--adopt", help="Results of another study file of this name become this file's.")]
PlacesArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[STUDY | DIR...]", help="The study file, or results directories.", autocompletion=completion.studies),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]


def _token(text: str) -> str:
    """Of `slipway remote`."""
    if len(text) != 8 or set(text) - set("0123456789abcdef"):
        raise typer.BadParameter(f"{text!r}: 8 hex digits")
    return text


def _config(site: str | None, retry: str | None, adopt: bool) -> dict[str, str | None]:
    """Our options by the keys of snakemake's --config that they mean."""
    return {"site": site, "retry": retry, "adopt": "yes" if adopt else None}


def _say_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"slipway {VERSION}\n")
        raise typer.Exit


@app.callback()
def slipway(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version.")] = False,  # noqa: ARG001
) -> None:
    """Training studies on your own cluster: one study file in, checked scalability tables out."""


@app.command(cls=Ours, short_help="Write a study file and a site file to begin with.")
def init(directory: Annotated[str, typer.Argument(metavar="DIR", help="Where they go; made if it does not exist.")]) -> None:
    """Write a commented study file and a commented site file to begin with; what is there already is never overwritten."""
    from workflow.commands import init as command

    command.main(directory)


@app.command("run", cls=Ours, context_settings={"ignore_unknown_options": True})
def run_study(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [SNAKEMAKE_OPTION]...",
            help="The study file, then any of Snakemake's options: -n, --cores 8, -k.",
            autocompletion=completion.studies,
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="One of ours (docs/commands.md), or a directory; default: what fits the site.")
    ] = None,
    site: SiteOption = None,
    retry: RetryOption = None,
    adopt: AdoptOption = False,
) -> None:
    """Run a study: what is finished stays, the rest is made. Shows what runs, ends with the speed-up table."""
    from workflow.commands import run as command

    command.main(words or [], _config(site, retry, adopt), profile, DEFAULT_STUDY)


@app.command(cls=Ours)
def plan(
    study: StudyArgument = DEFAULT_STUDY,
    cell: Annotated[str | None, typer.Option("--cell", help="Show one cell in full: argv, containers, cell.json, copy list.")] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a study will run, need and cost. Nothing is written."""
    from workflow.commands import plan as command

    command.main(study, cell, site, as_json)


@app.command(cls=Ours, short_help="Submit one job for all runs of a study.")
def submit(  # noqa: PLR0913 - its options
    study: StudyArgument = DEFAULT_STUDY,
    site: SiteOption = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Nodes of the job; default: those of the largest run left.", show_default=False)
    ] = None,
    spread: Annotated[
        bool, typer.Option("--spread", help="Repeats of a cell on different nodes; default then: nodes of the largest run x repeats.")
    ] = False,
    retry: RetryOption = None,
    adopt: AdoptOption = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the batch script; write and submit nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job to its end; exit 0 when all runs have a result.")] = False,
    token: Annotated[str | None, typer.Option("--token", hidden=True, parser=_token)] = None,
) -> None:
    """One job for the whole study: its runs go side by side on the job's nodes."""
    from workflow.commands import submit as command

    width = command.Width(nodes=nodes, spread=spread)
    command.main(study, _config(site, retry, adopt), command.Wanted(width=width, only_print=only_print, wait=wait, token=token))


@app.command(cls=Ours, short_help="How each run of a study stands, with reason and log.")
def status(study: StudyArgument = DEFAULT_STUDY, site: SiteOption = None, as_json: JsonOption = False) -> None:
    """Which runs are done, failed, prevented, running or missing, with reason and log."""
    from workflow.commands import status as command

    command.main(study, site, as_json)


@app.command(cls=Ours)
def logs(  # noqa: PLR0913 - its options
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run, or the beginning of its name if no other run begins so.", autocompletion=_runs)
    ],
    study: StudyOption = DEFAULT_STUDY,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Default: the latest.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Of this rank only.")] = None,
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=1, help="Only the last lines of each log.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing what is written until the run has ended.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """The logs of a run: supervisor, nodes and ranks."""
    from workflow.commands import logs as command

    if follow and as_json:
        raise typer.BadParameter("--json is one document, which --follow would never end")
    command.main(study, site, run, command.Wanted(attempt=attempt, rank=rank, lines=lines, follow=follow, as_json=as_json))


@dataset_app.command("build", cls=Ours, short_help="Build datasets on network storage.")
def dataset_build(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Datasets of the study; default: those its cells use.")
    ] = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Shards at once; default: the cores.", show_default=False)] = len(
        os.sched_getaffinity(0)
    ),
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a dataset with a damaged image, instead of listing it.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Read the source again, whose files have changed since the last build.")] = False,
) -> None:
    """Build datasets on network storage; what is built already is left alone, what was interrupted is resumed."""
    from workflow.commands import dataset as command

    command.main(study, site, names or [], command.Wanted(jobs=jobs, strict=strict, fresh=fresh))


@dataset_app.command("info", cls=Ours, short_help="What a dataset holds, and what was rejected.")
def dataset_info(
    name: Annotated[str, typer.Argument(help="A dataset of the study, or the directory of a built one.")],
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Classes, splits, counts, bytes, mean and deviation of a dataset, and what was rejected."""
    from workflow.commands import dataset as command

    command.info(study, site, name, as_json)


@dataset_app.command("verify", cls=Ours)
def dataset_verify(
    name: Annotated[str, typer.Argument(help="A dataset of the study, or the directory of a built or staged one.")],
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
) -> None:
    """Hash every chunk of a dataset and compare it with the manifest."""
    from workflow.commands import dataset as command

    command.verify(study, site, name)


@dataset_app.command("stage", cls=Ours, short_help="Bring a dataset into this node's cache.")
def dataset_stage(
    name: Annotated[str, typer.Argument(help="A dataset of the study, or the directory of a built one.")],
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    node: Annotated[int, typer.Option("--node", min=0, help="With the local scheduler: the node whose cache is filled.")] = 0,
) -> None:
    """Bring a built dataset into this node's cache, checked, before a run needs it."""
    from workflow.commands import dataset as command

    command.stage_here(study, site, name, node)


@cache_app.command("ls", cls=Ours, short_help="What lies in this node's cache, last used first.")
def cache_ls(site: SiteOption = None, as_json: JsonOption = False) -> None:
    """Datasets, unfinished copies and undelivered results in this node's cache, last used first."""
    from workflow.commands import cache as command

    command.ls(site, as_json)


@cache_app.command("rm", cls=Ours)
def cache_rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Datasets as `slipway cache ls` shows them.")],
    site: SiteOption = None,
    force: Annotated[bool, typer.Option("--force", help="Also while a run uses it: the run reads on undisturbed.")] = False,
) -> None:
    """Remove staged datasets, or what is left of copies."""
    from workflow.commands import cache as command

    command.rm(site, names, force)


@app.command(cls=Ours, short_help="Make the tables from the records, or print one.")
def tables(  # noqa: PLR0913 - its options
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TABLE] [STUDY | DIR...]",
            help="A table by its name, such as frameworks; then the study file, or results directories.",
            autocompletion=completion.studies,
        ),
    ] = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where records, tables and page lie; default: the first directory.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Write nothing; print the speed-up table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same for programs: write nothing, print it as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 19 if a run failed, was prevented, is missing or unreadable.")] = False,
) -> None:
    """Make the tables from whatever records there are. With --show print the speed-up, with the name of a table that one, and leave all
    files alone. `slipway tables framework-facts` tells of all frameworks, and needs no study."""
    from workflow.commands import tables as command

    command.main(study, site, places or [], command.Wanted(out=out, show=show, strict=strict, as_json=as_json))


@app.command(cls=Ours, short_help="Check records, pushed files and numbers again.")
def verify(
    places: PlacesArgument = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where records, tables and page lie; default: each directory.")] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, help="Begin no run after so many minutes; default: no limit.")
    ] = None,
) -> None:
    """Read every record and pushed file back, compute the numbers again from the events, and compare; exit 19 if one differs."""
    from workflow.commands import verify as command

    command.main(study, site, places or [], minutes, out)


LoginOption = Annotated[
    str | None, typer.Option("--login", metavar="NAME", help="What your laptop calls the login node; default: its own name.")
]


def start_session(  # noqa: PLR0913 - its options
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The command, or more options of the program.")
    ] = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="More than one: `run` only, on each of them.")] = 1,
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="Of each node; default: 1 where the site has some.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", metavar="NAME", help="Of the study; staged, in $SLIPWAY_DATA.")] = None,
    image: Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="The container image that has the program.")] = None,
    python: Annotated[str | None, typer.Option("--python", metavar="PATH", help="The interpreter, on the nodes or in the image.")] = None,
    ports: Annotated[str | None, typer.Option("--ports", metavar="PORT,...", help="On which the program listens (`serve`).")] = None,
    time: Annotated[str, typer.Option("--time", metavar="DURATION", help="How long it may last.")] = "1h",
    idle: Annotated[str | None, typer.Option("--idle", metavar="DURATION", help="End it when nobody has used it for so long.")] = None,
    push: Annotated[bool, typer.Option("--push", help="Bring what is written in its directory to storage; `run` always does.")] = False,
    allow_shared: Annotated[bool, typer.Option("--allow-shared", help="Ports of the node itself, which its users can read.")] = False,
    logdir: Annotated[Path | None, typer.Option("--logdir", help="Of `tensorboard`; default: the study's runs, exported.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait until it answers; of `run`: until it ends.")] = False,
    login: LoginOption = None,
) -> None:
    """Start it as a job of the site, wait until it answers, and print the line for your laptop."""
    from extras.session import command

    wanted = command.Wanted(
        nodes=nodes,
        gpus=gpus,
        dataset=dataset,
        image=image,
        python=python,
        ports=ports,
        walltime=time,
        idle=idle,
        push=push,
        allow_shared=allow_shared,
        logdir=logdir,
        detach=detach,
        login=login,
    )
    command.start(str(context.info_name), study, site, words or [], wanted)


for _name, _help in (
    ("shell", "A shell on a node, in the container if the site has an engine."),
    ("notebook", "JupyterLab on a node."),
    ("tensorboard", "TensorBoard, with the runs of a study."),
    ("serve", "Any program that listens on ports."),
    ("run", "A command, on each node; what it writes is pushed."),
):
    session_app.command(_name, cls=Ours, short_help=_help)(start_session)


@session_app.command("ls", cls=Ours, short_help="Sessions, how they stand, and how they are reached.")
def session_ls(site: SiteOption = None, login: LoginOption = None, as_json: JsonOption = False) -> None:
    """Your sessions on this site's storage: state, node, time left, and the line for your laptop."""
    from extras.session import command

    command.ls(site, login, as_json)


@session_app.command("attach", cls=Ours, short_help="Enter the shell of a session.")
def session_attach(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="As `slipway session ls` shows it.")], site: SiteOption = None
) -> None:
    """A terminal at a shell of a session; several may be at one."""
    from extras.session import command

    command.attach_to(site, session)


@session_app.command("stop", cls=Ours, short_help="End sessions.")
def session_stop(
    names: Annotated[list[str], typer.Argument(metavar="SESSION...", help="As `slipway session ls` shows them.")],
    site: SiteOption = None,
    now: Annotated[bool, typer.Option("--now", help="Cancel the job, instead of letting it end in order.")] = False,
) -> None:
    """End sessions; what was to be pushed is pushed before."""
    from extras.session import command

    command.stop(site, names, now)


@app.command(cls=Ours, short_help="The runs of a study for another tool, such as TensorBoard.")
def export(
    name: Annotated[str, typer.Argument(metavar="FORMAT", help="tensorboard, mlflow or wandb.")],
    places: PlacesArgument = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the files go; made if it is not there.")] = Path("exported"),
) -> None:
    """Write what the records and events of a study tell in the format of another tool, a directory per study and run."""
    from extras.export import command

    command.main(name, study, site, places or [], to)


@app.command(cls=Ours, short_help="Who is told of a study's end; --test tells them now.")
def notify(
    study: StudyArgument = DEFAULT_STUDY,
    site: SiteOption = None,
    test: Annotated[bool, typer.Option("--test", help="Tell them something now.")] = False,
) -> None:
    """Say who is told of the end of a study, by `notify` of its file or the site's, or try it."""
    from workflow.commands import notify as command

    command.main(study, site, test)


@app.command("check-frameworks", cls=Ours, short_help="Whether frameworks train the same networks.")
def check_frameworks(
    study: StudyArgument = DEFAULT_STUDY,
    site: SiteOption = None,
    runs: Annotated[bool, typer.Option("--run", help="Run the first five steps of cells without a finished run.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the losses of the first five steps of cells that differ only in their framework; exit 19 unless all are equal to 1e-5."""
    from workflow.commands import check_frameworks as command

    command.main(study, site, as_json, runs=runs)


@app.command(cls=Ours, short_help="Tables, plots and one page that opens without network.")
def report(
    places: PlacesArgument = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where everything goes; default: the first directory.")] = None,
) -> None:
    """Tables, plots and the page report.html, which opens without network."""
    from workflow.commands import report as command

    command.main(study, site, places or [], out)


@app.command(cls=Ours, short_help="Check a site and say what to do; or write its file.")
def doctor(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="With --write-site: name or path of the new file; default: default.")
    ] = None,
    site: SiteOption = None,
    write: Annotated[
        bool, typer.Option("--write-site", help="Write the site file NAME.yaml from what is found here, instead of checking.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check scheduler, storage, cache, network and limits of a site, and say what to do; best inside an allocation too."""
    from extras.doctor import command

    if name is not None and not write:
        raise typer.BadParameter(f"{name!r} goes with --write-site; the site to check is chosen by --site {name}")
    command.main(site, command.Wanted(as_json=as_json, write_site=write, name=name))


@app.command(cls=Ours, short_help="This node's GPUs: granted to whom, and used by whom.")
def gpus(
    explain: Annotated[bool, typer.Option("--explain", help="Say step by step how it was decided: variables, rule, result.")] = False,
    as_json: JsonOption = False,
) -> None:
    """This node's GPUs by UUID, which of them this process was granted, and who uses them."""
    from workflow.commands import gpus as command

    command.main(explain, as_json)


@app.command(cls=Ours, short_help="Deliver or remove what earlier runs left on this node.")
def reap(
    push: Annotated[bool, typer.Option("--push", help="Deliver results that storage did not take; default: only count.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is of jobs and runs that are gone; default: only list.")] = False,
    images: Annotated[bool, typer.Option("--images", help="Images of ours that no run used lately, instead of what runs left.")] = False,
    site: SiteOption = None,
) -> None:
    """What earlier runs left on this node: results that wait in its cache, containers and files of runs that are gone."""
    from workflow.commands import reap as command

    command.main(site, push, remove, images)


@app.command(
    "remote", cls=PassesOn, context_settings={"ignore_unknown_options": True}, short_help="The commands of a cluster, typed on a laptop."
)
def remote(
    host: Annotated[str, typer.Argument(metavar="HOST", help="As `ssh` knows it: a name of your configuration, or USER@HOST.")],
    verb: Annotated[
        str,
        typer.Argument(
            metavar="VERB",
            help="setup, plan, submit, status, logs, tables, report, verify, session, close.",
            autocompletion=completion.verbs,
        ),
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY] [OPTION]...", help="A study file of this laptop, and the options that VERB has.")
    ] = None,
    slipway: Annotated[str | None, typer.Option("--slipway", metavar="PATH", help="Slipway on HOST; kept from then on.")] = None,
    transport: Annotated[str | None, typer.Option("--transport", metavar="ssh|paramiko", help="Kept from then on.")] = None,
) -> None:
    """Run a command on a cluster that is reached by SSH: the study goes up, results come down, and after a cut the same command goes on."""
    from extras.remote import command

    raise typer.Exit(command.main(host, verb, words or [], command.Wanted(slipway=slipway, transport=transport)))


@app.command("remote-end", cls=Ours, hidden=True)
def remote_end(verb: str, words: Annotated[list[str] | None, typer.Argument()] = None, site: SiteOption = None) -> None:
    """What `slipway remote` asks of the cluster."""
    from extras.remote import command_on_cluster as command

    command.main(verb, words or [], site)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exits with 0, the code of the error's class, 2 for wrong usage, 1 for a bug of ours."""
    sys.exit(guarded(lambda: _flushed(run(sys.argv[1:] if arguments is None else arguments))))


def _flushed(code: int) -> int:
    """`code`, once all is written. Where nobody reads any more (`| head`, a terminal that is gone) Python would end with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            code = code or GONE
    return code


@cache
def parser() -> Any:
    """All commands with their options; made once, also for who calls run() again and again."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """The exit code. Our own errors become a message on standard error, never a traceback."""
    private_umask()
    configure("slipway")
    try:
        os.environ.update(account_environ(os.environ))
        parser()(args=list(arguments), prog_name="slipway")
    except SystemExit as ended:  # typer's way to return: 0, 2 after it has said what is wrong with the usage, 130 after Ctrl-C
        return ended.code if isinstance(ended.code, int) else 1
    except SlipwayError as error:
        return _say(str(error), error.exit_code)
    except OSError as error:
        return _say(_os_words(error), StorageError.exit_code)
    return 0


def _os_words(error: OSError) -> str:
    if not error.filename:
        return str(error)
    above = obstacle(os.fsdecode(error.filename)) if isinstance(error, PermissionError) else None
    return f"{error.filename}: {error.strerror}{f': {above}' if above else ''}"


def _say(message: str, code: int) -> int:
    with suppress(OSError):  # the terminal may have gone, and the code is known all the same
        sys.stdout.flush()  # in a pipe or a file that takes both, what was printed before stands before its error
    with suppress(OSError):
        sys.stderr.write(f"slipway: {printable(masked(message))}\n")
    return code


if __name__ == "__main__":
    main()
