"""Run the commands of a cluster from a laptop, for `slipway remote HOST VERB ...`.

The study goes up by its content, the ordinary command runs there, results come down; after a cut the same command goes on.
"""

import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from base import VERSION, humanize, logs
from base.errors import ConfigError, ConnectionCut, RemoteError
from cluster import processes, ssh
from cluster.ssh import OpenSsh, retry_once, run_there
from extras.remote.asking import ANSWER_S, Have, Placed, RemoteHost, Results, fetch, find_slipway, update
from extras.remote.bundle import Bundle, make_bundle
from extras.remote.command_words import Typed, parse_typed
from extras.remote.laptop_state import Settings, read_settings, source_of, submission, without_wait, write_settings
from workflow.commands import options
from workflow.commands.watching import output
from workflow.run.record.step_clock import with_login

# Show the output of a command on the cluster line by line, made safe for a terminal, with its commands as one types them here.


PROPOSED: Final = re.compile(r"\bslipway (?=(plan|submit|status|logs|tables|report|verify)\b)")
SESSIONS: Final = re.compile(r"\bslipway (?=session (ls|stop)\b)")
LONGEST: Final = 1 << 16


class Relay:
    """The output of one command there. `there`: the study file on the cluster, which is `here` on the laptop; None: there is none."""

    def __init__(self, *, host: str, there: str | None, here: str) -> None:
        self._host, self._there, self._here = host, there, here
        self._rest: dict[bool, bytes] = {True: b"", False: b""}
        self.has_shown = False

    def out(self, data: bytes) -> None:
        self._take(data, is_out=True)

    def err(self, data: bytes) -> None:
        self._take(data, is_out=False)

    def end(self) -> None:
        """Show a last line that came without its end."""
        for is_out, rest in self._rest.items():
            if rest:
                self._show(rest, is_out)
            self._rest[is_out] = b""

    def as_typed_here(self, line: str) -> str:
        command = f"slipway remote {shlex.quote(self._host)} "
        line = SESSIONS.sub(lambda _: command, line)
        if self._there is None or self._there not in line:
            return logs.printable(line)
        proposed, commands = PROPOSED.subn(lambda _: command, line)
        here = shlex.quote(self._here) if commands else self._here
        return logs.printable(proposed.replace(shlex.quote(self._there), here).replace(self._there, here))

    def _take(self, data: bytes, *, is_out: bool) -> None:
        *lines, rest = (self._rest[is_out] + data).split(b"\n")
        for line in lines:
            self._show(line, is_out)
        self._rest[is_out] = rest if len(rest) < LONGEST else b""
        if len(rest) >= LONGEST:
            self._show(rest, is_out)

    def _show(self, line: bytes, is_out: bool) -> None:
        self.has_shown = True
        stream: IO[str] = sys.stdout if is_out else sys.stderr
        stream.write(self.as_typed_here(line.decode(errors="replace")) + "\n")
        stream.flush()


PAUSES: Final = (2.0, 5.0, 10.0, 30.0, 60.0)
"""The pauses between tries while the line is cut."""
VERBS: Final = ("setup", "plan", "submit", "status", "logs", "tables", "report", "verify", "session", "close")
ENDED: Final = (0, 19, 25, 26)
"""The exit codes with which, under --wait, the job is over."""


class COMMAND_CLASS(options.PassingCommand):  # noqa: N801 - what main.py looks for
    """A command that passes all words on, with the `--` that stands before a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the first `--`, of which typer takes away one."""
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*args[:end], *args[end : end + 1], *args[end:]])


def main(
    host: Annotated[str, typer.Argument(metavar="HOST", help="As `ssh` knows it: a name of your configuration, or USER@HOST.")],
    verb: Annotated[str, typer.Argument(metavar="VERB", help="setup, plan, submit, status, logs, tables, report, verify, session, close.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY] [OPTION]...", help="A study file of this laptop, and the options that VERB has.")
    ] = None,
    slipway: Annotated[str | None, typer.Option("--slipway", metavar="PATH", help="Slipway on HOST; kept from then on.")] = None,
) -> None:
    """Run a command of a cluster from a laptop, by SSH: the study goes up, results come down, and after a cut the same command goes
    on.

    VERB is setup, plan, submit, status, logs, tables, report, verify, session or close, with the options that it has there. Exit
    28: the host cannot be reached, or refuses.
    """
    raise typer.Exit(run_verb(host, verb, words or [], slipway))


def run_verb(host: str, verb: str, words: Sequence[str], slipway: str | None = None) -> int:
    """Run the command there, and return its exit code. `slipway`: the program there; None: what was found before, or is found now. Raises
    ConfigError, RemoteError."""
    if verb not in VERBS:
        raise ConfigError(f"{verb!r}: no command of slipway remote; {humanize.choices(verb, VERBS)}")
    connection = OpenSsh(host)
    if verb == "close":
        output.line(f"the connection to {host} is closed" if connection.hang_up() else f"no connection to {host} is open")
        return 0
    kept = read_settings(host)
    typed = None if verb == "setup" else parse_typed(host, verb, words)
    site = _site(words) if verb == "setup" and words else kept.site if kept else None
    connection.connect(ask=True)
    if kept is None or verb == "setup" or slipway:
        kept = _set_up(connection, Settings(slipway=slipway or (kept.slipway if kept else ""), site=site))
    return 0 if typed is None else _run_typed(RemoteHost(connection=connection, settings=kept), typed)


def _set_up(connection: OpenSsh, asked: Settings) -> Settings:
    hello = find_slipway(connection, asked.slipway or None)
    settings = replace(asked, slipway=hello.program)
    file = write_settings(connection.host, settings)
    output.notice(f"{connection.host} ({hello.host}) has Slipway {hello.version}: {hello.program}; kept in {file}")
    if hello.version != VERSION:
        output.notice(f"here is Slipway {VERSION}: {update(connection.host)}")
    return settings


def _site(words: Sequence[str]) -> str:
    if len(words) == 2 and words[0] == "--site":
        return words[1]
    raise ConfigError(f"setup: found {' '.join(words)}; valid: --site NAME, --slipway PATH")


def _run_typed(remote: RemoteHost, typed: Typed) -> int:
    site = typed.site or remote.settings.site
    if typed.study is not None and typed.verb in ("tables", "report") and _is_same(typed.out / "study.yaml", typed.study):
        raise ConfigError(
            f"--out {typed.out}: {typed.study} lies there, and the study.yaml of the results would replace it; choose another"
        )
    there = None if typed.study is None else _brought(remote, typed.study, site)
    argv = [remote.settings.slipway, *typed.for_cluster(remote.connection.host, there, site)]
    relay = Relay(host=remote.connection.host, there=there, here=str(typed.study))
    if typed.session not in ("", "ls", "stop"):
        return _start_session(remote, argv, relay)
    if typed.verb == "submit":
        code = _submit(remote, argv, relay, (there, site, *without_wait(typed.rest)))
    elif typed.follows:
        code = _patient(remote, lambda number: [*argv, "--lines", "20"] if number else argv, relay)
    else:
        code = retry_once(lambda: _once(remote, argv, relay))
    if typed.makes_results and code == 0 and there is not None:
        found = remote.ask(Results, "results", there, *(("--site", site) if site is not None else ()))
        for text in fetch(remote.connection, found, typed.out, typed.max_bytes, output.notice):
            output.line(text)
    return code


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _brought(remote: RemoteHost, study: Path, site: str | None) -> str:
    with tempfile.TemporaryDirectory(prefix="slipway-remote-") as place:
        bundle = make_bundle(study, Path(place, "study"))
        return bring(remote, bundle, source_of(study, bundle.name), site)


def _start_session(remote: RemoteHost, argv: Sequence[str], relay: Relay) -> int:
    """Start a session there. A start is not done twice: after a cut, `session ls` tells whether it has begun."""
    retry_once(lambda: run_there(remote.connection, ["true"], limit_s=ANSWER_S))  # a cut of before is noticed while nothing has begun
    try:
        return remote.connection.stream(argv, relay.out, relay.err)
    except ConnectionCut as error:
        shown = f"slipway remote {shlex.quote(remote.connection.host)} session ls"
        raise RemoteError(f"{error}; if the session has begun it goes on, which `{shown}` shows, with the line for this machine") from error
    finally:
        relay.end()


def bring(remote: RemoteHost, bundle: Bundle, source: str, site: str | None) -> str:
    """Return the study file's path there, and send what is missing: what is there costs one question. Raises RemoteError, and what the
    cluster says."""

    def once() -> str:
        chosen = ("--site", site) if site is not None else ()
        found = remote.ask(Have, "have", source, bundle.digest, *chosen)
        if not found.there:
            ssh.put(remote.connection, bundle.tree, found.incoming)
            remote.ask(Placed, "place", source, bundle.digest, found.incoming, *chosen)
        return f"{found.place}/{bundle.file}"

    return retry_once(once)


def _submit(remote: RemoteHost, argv: Sequence[str], relay: Relay, what: Sequence[str | None]) -> int:
    """Submit with a token that stays until it is known what became of it: the job is there, or with --wait, over."""
    if "--print" in argv:
        return retry_once(lambda: _once(remote, argv, relay))
    waits = "--wait" in argv
    asked = submission(remote.connection.host, *what)
    code = _patient(remote, lambda _: [*with_time(argv), "--token", asked.token], relay)
    if code == 0 or (waits and code in ENDED):
        asked.close()
    return code


def with_time(argv: Sequence[str]) -> list[str]:
    """Add to `argv` how long this command has taken here until now: it counts as the step `login` of the runs."""
    return ["env", *(f"{name}={value}" for name, value in with_login({}, processes.age_s(os.getpid())).items()), *argv]


def _once(remote: RemoteHost, argv: Sequence[str], relay: Relay) -> int:
    """Run a command once. Raises ConnectionCut, as RemoteError where something was shown already, so that it is not shown twice."""
    try:
        code = remote.connection.stream(argv, relay.out, relay.err)
    except ConnectionCut as error:
        if relay.has_shown:
            raise RemoteError(f"{error}; the same command again goes on") from error
        raise
    finally:
        relay.end()
    return code


def _patient(remote: RemoteHost, argv_of: Callable[[int], Sequence[str]], relay: Relay) -> int:
    """Run a command until it ends, over any number of cuts. Raises RemoteError where only a person can log in again, and none is there."""
    number = tried = 0
    while True:
        began = time.monotonic()
        try:
            code = remote.connection.stream(argv_of(number), relay.out, relay.err)
            relay.end()
            return code
        except ConnectionCut as error:
            relay.end()
            tried = 0 if time.monotonic() - began > PAUSES[-1] else tried  # the line had been there for a while
            pause = PAUSES[min(tried, len(PAUSES) - 1)]
            output.notice(
                f"{str(error).splitlines()[0]}; tried again in {pause:g} s; what was begun on {remote.connection.host} goes on meanwhile"
            )
            number, tried = number + 1, tried + 1
            sys.stdout.flush()
            time.sleep(pause)
            _reconnect(remote.connection)


def _reconnect(connection: OpenSsh) -> None:
    try:
        connection.connect(ask=True)
    except ConnectionCut:
        return  # the next try says so
