"""What is worth a look in the programs of a study, and no error: words that only a shell would fill in, arguments that no command
uses, a batch that nobody gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from base.units import some
from containers.placeholders import names_in
from containers.step_lines import reports
from workflow.study.programs import LogEvents, Program

VARIABLE: Final = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][^}]*\}|\()")
"""What a shell would replace."""
SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "zsh", "csh", "tcsh", "fish"})
BATCH: Final = frozenset({"batch_size", "global_batch_size"})
MOST: Final = 4


def program_notes(programs: Mapping[str, Program], arguments: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """One line for each program and thing. `arguments`: program and names of its arguments, of each cell that has one."""
    given: dict[str, set[str]] = {}
    for name, names in arguments:
        given.setdefault(name, set()).update(names)
    read = {found for name in given for command in _commands(programs[name]) for word in command for found in names_in(word)}
    notes = []
    for name in sorted(given):
        program = programs[name]
        used = {found for command in _commands(program) for word in command for found in names_in(word)}
        lines = program.events.log.step if isinstance(program.events, LogEvents) and program.unit == "samples" else None
        if lines is not None and not reports(lines, "samples") and not used & BATCH:
            notes.append(
                f"program {name}: its output reports no samples, and no word of its command uses {{batch_size}}: the rate takes batch_size "
                "of the study, whatever the program does; write {batch_size} into its command, or the group samples into its expression"
            )
        shell_words = [word for command in _commands(programs[name]) if not _is_shell(command) for word in command if VARIABLE.search(word)]
        if shell_words:
            notes.append(
                f"program {name}: no shell reads its command, so that {some([*map(repr, shell_words)], MOST)} is given to it as it stands; "
                "write the value, {args.NAME}, or a command that begins with sh, -c"
            )
        unread = sorted(f"args.{argument}" for argument in given[name] if f"args.{argument}" not in read)
        if unread:
            one = unread[0].removeprefix("args.")
            notes.append(
                f"program {name}: no word of its command uses {some(unread, MOST)}; that is right if the program itself asks for it, as "
                f"SLIPWAY_ARG_{one.upper()} or run.args"
            )
    return notes


def _commands(program: Program) -> list[tuple[str, ...]]:
    return [program.command, *(sidecar.command for sidecar in program.sidecars)]


def _is_shell(command: Sequence[Any]) -> bool:
    return PurePath(command[0]).name in SHELLS
