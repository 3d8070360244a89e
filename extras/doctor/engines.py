"""Check which container engines are here."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from base.errors import SlipwayError
from base.process import last_lines, run
from containers.engines import ENGINES, PLUGGED_INTO, get_engine, in_container
from extras.doctor.types import Context, Finding

ANSWER_S: Final = 8.0
"""How long an engine may take to print its version."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine's command. `version` is None where it did not answer; then `trouble` says why."""

    version: str | None
    trouble: str = ""


def check_engines(context: Context) -> Iterator[Finding]:
    """Ask each engine for its version; no container is started."""
    engines = {name: _ask(get_engine(name).VERSION) for name in ENGINES if in_container(name) and _absence(name) is None}
    yield from judge_engines(engines, context.site.engine)


def judge_engines(engines: Mapping[str, Engine], chosen: str) -> Iterator[Finding]:
    """Judge the engines. `chosen`: of the site file."""
    usable = {name: engine.version for name, engine in engines.items() if engine.version}
    others = ", ".join(f"{name} {version}" for name, version in usable.items() if name != chosen)
    if not in_container(chosen):
        text = f"the site file says engine: {chosen}, without containers; here: {others or 'no engine that can be used'}"
        yield Finding("engines", "ok", text)
    elif chosen in usable:
        yield Finding("engines", "ok", f"{chosen} {usable[chosen]} can be used{f'; besides {others}' if others else ''}")
    else:
        why = engines[chosen].trouble if chosen in engines else _absence(chosen)
        text = f"engine: {chosen} of the site file cannot be used here: {why}"
        yield Finding("engines", "error", text, f"engine: {' or '.join([*usable, 'bare'])}, or `setup` lines such as module load {chosen}")
    for name, engine in engines.items():
        if engine.version is None and name != chosen:
            yield Finding("engines", "note", f"{name} is installed, but cannot be used: {engine.trouble}")


def _absence(name: str) -> str | None:
    """Return why an engine is not here; None where it is."""
    if name not in PLUGGED_INTO:
        return None if shutil.which(name) else "its command is not on PATH"
    argv, option = PLUGGED_INTO[name]
    try:
        is_told = option in run(argv, timeout_s=ANSWER_S).stdout
    except SlipwayError as error:
        return str(error)
    return None if is_told else f"`{' '.join(argv)}` tells no option {option}, so it is not a part of {argv[0]} here"


def _ask(argv: tuple[str, ...]) -> Engine:
    try:
        result = run(argv, timeout_s=ANSWER_S)
    except SlipwayError as error:
        return Engine(version=None, trouble=str(error))
    if result.returncode or not result.stdout.strip():
        return Engine(version=None, trouble=last_lines(result.stderr or result.stdout, 1) or f"exit code {result.returncode}")
    return Engine(version=result.stdout.split()[-1])
