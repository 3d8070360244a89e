"""The interpreter that a framework has to itself where no container is used: frameworks need different versions of the same packages.

A folder with a file of BUILDERS has one: a directory below Slipway's own environment, which `make framework NAME=...` fills, and in which
`bin/python` is the interpreter. PyTorch has none: it is installed beside Slipway.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from base.errors import ConfigError, SlipwayError
from base.lock import LockFile
from base.publish import publish
from cluster.installation import FROM_CHECKOUT
from containers.frameworks import FRAMEWORKS, load_framework
from containers.frameworks.spec import FrameworkSpec


@dataclass(frozen=True, kw_only=True)
class Told:
    """What make was told: PYTHON=, an interpreter of the version that the framework needs; DEBIAN=, the address of a mirror of Debian."""

    python: str | None = None
    debian: str | None = None


def _by_pip(spec: FrameworkSpec, pins: Path, place: Path, told: Told) -> None:
    from containers.frameworks.pip_environment import install_by_pip  # noqa: PLC0415 - runs ask for the interpreter only

    install_by_pip(spec, pins, place, told.python)


def _from_debian(_: FrameworkSpec, pins: Path, place: Path, told: Told) -> None:
    from containers.frameworks.debian_environment import unpack_packages  # noqa: PLC0415

    unpack_packages(pins, place, told.debian)


Builder = Callable[[FrameworkSpec, Path, Path, Told], None]
"""(framework, the file in its folder, the directory to make anew, what make was told) -> nothing; raises ConfigError."""
BUILDERS: Final[dict[str, Builder]] = {"requirements.txt": _by_pip, "debian-packages.txt": _from_debian}
"""Name of a file -> who makes an environment of it. In the folder: what is installed. In the environment: what was installed, written when
all of it is there."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """An environment that a word of a cell asks for. It finds the PyTorch beside Slipway, and has the packages of `pins`, a file in the
    folder of `framework`."""

    framework: str
    strategy: str = "ddp"
    backend: str = "auto"
    pins: str


BESIDE: Final = {
    "pytorch-horovod": Beside(framework="pytorch", strategy="horovod", pins="horovod.txt"),
    "keras-torch": Beside(framework="keras", backend="torch", pins="torch.txt"),
}
HOROVOD: Final = "pytorch-horovod"
"""Built from sources."""
MOST_NAMED: Final = 5


def pins_of(folder: Path) -> Path | None:
    """The file of BUILDERS that a folder has; None: the framework has no environment of its own."""
    return next((folder / name for name in BUILDERS if (folder / name).is_file()), None)


def place_of(name: str) -> Path:
    """Where the environment of a framework lies. Compute nodes see it where they see Slipway's own."""
    return Path(sys.prefix, "frameworks", name)


def environment_of(spec: FrameworkSpec, strategy: str = "ddp", backend: str = "auto") -> tuple[str, Path] | None:
    """Name and pins of the environment in which the bare engine starts it; None: Slipway's own."""
    for name, beside in BESIDE.items():
        if (beside.framework, beside.strategy, beside.backend) == (spec.name, strategy, backend):
            return name, spec.folder / beside.pins
    pins = pins_of(spec.folder)
    return None if pins is None else (spec.name, pins)


def own_python(spec: FrameworkSpec, strategy: str = "ddp", backend: str = "auto") -> str | None:
    """The interpreter that the bare engine starts; None: Slipway's own."""
    found = environment_of(spec, strategy, backend)
    return None if found is None else str(place_of(found[0]) / "bin" / "python")


def what_is_missing(spec: FrameworkSpec, strategy: str = "ddp", backend: str = "auto") -> str | None:
    """Why the bare engine cannot run it here, and what to do; None: it can."""
    if spec.containers_only is not None:
        return f"framework {spec.name!r} runs in containers only: {spec.containers_only}; take a site with another engine than bare"
    found = environment_of(spec, strategy, backend)
    if found is None:
        module = next((package.partition("==")[0] for package in spec.packages), None)
        if module is None or find_spec(module) is not None:
            return None
        return (
            f"framework {spec.name!r} needs {module}, which is not installed in {sys.prefix}: `pip install {spec.packages[0]}` installs it "
            f"(docs/installing.md), or choose an engine with containers"
        )
    name, pins = found
    place = place_of(name)
    command = f"make framework NAME={name}" if FROM_CHECKOUT else f"{sys.executable} -P -m containers.frameworks.environment {name}"
    advice = f"`{command}` installs it, or choose an engine with containers"
    if not (place / pins.name).is_file():
        return f"framework {name!r} has no environment in {place}: {advice}"
    if (place / pins.name).read_bytes() != pins.read_bytes():
        return f"the environment of framework {name!r} in {place} has other versions than {pins}: {advice}"
    return None


def build(spec: FrameworkSpec, told: Told) -> Path:
    """Make its environment anew, with the words of what installs it; the place. Raises ConfigError."""
    pins, place = pins_of(spec.folder), place_of(spec.name)
    if pins is None:
        raise ConfigError(f"framework {spec.name!r} has no environment of its own: it is installed beside Slipway")
    with made_anew(place, pins):
        BUILDERS[pins.name](spec, pins, place, told)
    return place


def build_beside(name: str) -> Path:
    """One of BESIDE, likewise."""
    from containers.frameworks.beside import install_beside  # noqa: PLC0415 - as above
    from containers.frameworks.horovod import install_horovod  # noqa: PLC0415

    pins, place = FRAMEWORKS[BESIDE[name].framework] / BESIDE[name].pins, place_of(name)
    with made_anew(place, pins):
        (install_horovod if name == HOROVOD else install_beside)(pins, place)
    return place


@contextlib.contextmanager
def made_anew(place: Path, pins: Path) -> Iterator[None]:
    """By one at a time. The file that says that all of it is there goes before anything else does, and comes last: who is killed, even
    while the old one is removed, leaves none that looks complete. Raises ConfigError."""
    try:
        place.parent.mkdir(exist_ok=True)
        with LockFile(place.parent / f".{place.name}.lock") as lock:
            if not lock.try_take():
                raise ConfigError(f"another `make framework` is at work in {place}: wait until it is done")
            if users := processes_in(place):
                raise ConfigError(
                    f"the environment in {place} is used on this machine ({and_so_on(users)}), and a run would lose it: wait until these "
                    "have ended. Runs on other nodes are not seen from here"
                )
            (place / pins.name).unlink(missing_ok=True)
            yield
            publish(place / pins.name, pins.read_bytes())
    except OSError as error:
        raise ConfigError(f"the environment in {place} cannot be made: {error}; it needs room and a place to write to") from error


def processes_in(place: Path) -> list[int]:
    """Processes of this machine that have a file of it in memory, as far as they may be looked at: their ids."""
    inside = f" {place.resolve()}/"
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if inside in maps.read_text(encoding="utf-8", errors="replace"):
                found.append(int(maps.parent.name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return sorted(found)


def and_so_on(numbers: Sequence[int]) -> str:
    """`process 7`, `processes 7, 8, 9, ...`."""
    named = ", ".join(map(str, numbers[:MOST_NAMED])) + (", ..." if len(numbers) > MOST_NAMED else "")
    return f"process{'es' if len(numbers) > 1 else ''} {named}"


def main() -> int:
    """The command line of `make framework`."""
    own = sorted((*BESIDE, *(name for name, folder in FRAMEWORKS.items() if pins_of(folder))))
    parser = argparse.ArgumentParser(prog="python -m containers.frameworks.environment", description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=own)
    parser.add_argument("--python", help="an interpreter of the version that the framework needs; looked for where it is not given")
    parser.add_argument("--debian", help="a mirror of Debian, for packages of an old version of it; that of apt where it is not given")
    arguments = parser.parse_args()
    try:
        told = Told(python=arguments.python, debian=arguments.debian)
        name = arguments.framework
        place = build_beside(name) if name in BESIDE else build(load_framework(name), told)
    except SlipwayError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{place}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
