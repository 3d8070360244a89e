"""Find the own Python of a framework that runs without a container: frameworks need different versions of the same packages.

It lies in a directory below Slipway's own environment, which `make framework NAME=...` fills: `bin/python` is the interpreter, and the file
of pins says what was installed, and is there when all of it is. PyTorch has none: it is installed beside Slipway.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from base import errors, publish
from base.lock import LockFile
from cluster.installation import FROM_CHECKOUT
from containers.frameworks import load_framework
from containers.frameworks.spec import FrameworkSpec


@dataclass(frozen=True, kw_only=True)
class ExtraEnvironment:
    """An environment that a key of a cell asks for. It finds the PyTorch beside Slipway, and has the packages of `pins`, a file in the
    folder of `framework`."""

    framework: str
    strategy: str = "ddp"
    backend: str = "auto"
    pins: str


BESIDE: Final = {
    "pytorch-horovod": ExtraEnvironment(framework="pytorch", strategy="horovod", pins="horovod.txt"),
    "keras-torch": ExtraEnvironment(framework="keras", backend="torch", pins="torch.txt"),
}
HOROVOD: Final = "pytorch-horovod"
"""Built from sources."""


def environment_dir(name: str) -> Path:
    """Return where the environment of a framework lies. Compute nodes see it where they see Slipway's own."""
    return Path(sys.prefix, "frameworks", name)


def environment_of(spec: FrameworkSpec, strategy: str = "ddp", backend: str = "auto") -> tuple[str, Path] | None:
    """Return name and pins of the environment in which the bare engine starts it; None: Slipway's own."""
    for name, beside in BESIDE.items():
        if (beside.framework, beside.strategy, beside.backend) == (spec.name, strategy, backend):
            return name, spec.folder / beside.pins
    return None if spec.environment is None else (spec.name, spec.folder / spec.environment.pins)


def own_python(spec: FrameworkSpec, strategy: str = "ddp", backend: str = "auto") -> str | None:
    """Return the interpreter that the bare engine starts; None: Slipway's own."""
    found = environment_of(spec, strategy, backend)
    return None if found is None else str(environment_dir(found[0]) / "bin" / "python")


def what_is_missing(spec: FrameworkSpec, strategy: str = "ddp", backend: str = "auto") -> str | None:
    """Return why the bare engine cannot run it here, and what to do; None: it can."""
    found = environment_of(spec, strategy, backend)
    if found is None:
        module = next((package.partition("==")[0] for package in spec.packages), None)
        if module is None or find_spec(module) is not None:
            return None
        return (
            f"framework {spec.name!r} needs {module}, which is not installed in {sys.prefix}: `pip install {spec.packages[0]}` installs it "
            f"(docs/how-to/install.md), or choose an engine with containers"
        )
    name, pins = found
    place = environment_dir(name)
    command = f"make framework NAME={name}" if FROM_CHECKOUT else f"{sys.executable} -P -m containers.frameworks.own_python {name}"
    advice = f"`{command}` installs it, or choose an engine with containers"
    if not (place / pins.name).is_file():
        return f"framework {name!r} has no environment in {place}: {advice}"
    if (place / pins.name).read_bytes() != pins.read_bytes():
        return f"the environment of framework {name!r} in {place} has other versions than {pins}: {advice}"
    return None


def build(name: str, options: Mapping[str, str]) -> Path:
    """Make the environment `name` anew, with the output of what installs it, and return its place.

    `options` are what make was told, for the framework's own installer: `python`, an interpreter of the version that it needs; `debian`,
    the address of a mirror of Debian. Raises ConfigError.
    """
    from containers.frameworks.venvs import install_horovod, install_isolated, install_with_pytorch, run  # noqa: PLC0415 - runs ask for the interpreter only

    place = environment_dir(name)
    if (beside := BESIDE.get(name)) is not None:
        pins = load_framework(beside.framework).folder / beside.pins
        with made_anew(place, pins):
            (install_horovod if name == HOROVOD else install_with_pytorch)(pins, place)
        return place
    spec = load_framework(name)
    if (wanted := spec.environment) is None:
        raise errors.ConfigError(f"framework {name!r} has no environment of its own: it is installed beside Slipway")
    pins = spec.folder / wanted.pins
    with made_anew(place, pins):
        if wanted.installer is None:
            install_isolated(pins, place)
        else:
            words = [word for option, value in options.items() for word in (f"--{option}", value)]
            run([sys.executable, "-P", str(spec.folder / wanted.installer), str(spec.folder), str(place), *words])
    return place


@contextlib.contextmanager
def made_anew(place: Path, pins: Path) -> Iterator[None]:
    """Let the body make `place`, one process at a time, and mark it complete in the end.

    The file that says that all of it is there goes before anything else does, and comes last: who is killed, even while the old one is
    removed, leaves none that looks complete. Raises ConfigError.
    """
    try:
        place.parent.mkdir(exist_ok=True)
        with LockFile(place.parent / f".{place.name}.lock") as lock:
            if not lock.try_take():
                raise errors.ConfigError(f"another `make framework` is at work in {place}: wait until it is done")
            (place / pins.name).unlink(missing_ok=True)
            yield
            publish.publish(place / pins.name, pins.read_bytes())
    except OSError as error:
        raise errors.ConfigError(f"the environment in {place} cannot be made: {error}; it needs room and a place to write to") from error


def main() -> int:
    """Run the command line of `make framework`."""
    parser = argparse.ArgumentParser(prog="python -m containers.frameworks.own_python", description=__doc__.splitlines()[0])
    parser.add_argument("framework")
    parser.add_argument("--python", help="an interpreter of the version that the framework needs; looked for where it is not given")
    parser.add_argument("--debian", help="a mirror of Debian, for packages of an old version of it; that of apt where it is not given")
    arguments = parser.parse_args()
    options = {name: value for name in ("python", "debian") if (value := getattr(arguments, name)) is not None}
    try:
        place = build(arguments.framework, options)
    except errors.SlipwayError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{place}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
