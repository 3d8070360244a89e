"""Images of frameworks for tests: `python -m tests.images FRAMEWORK ...`, by the framework's Dockerfile, without a registry.

The base is one of tests/images.py, with the Python of the framework's environment where it needs an older one. Podman builds them, with
stores of its own below the cache, on this machine's network: Dockerfiles that ask apt for packages find Debian's mirror. The wheels are
those that pip finds on this machine.
"""

import functools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from containers.frameworks import framework_folders, load_framework
from containers.frameworks.own_python import own_python, what_is_missing
from tests import images

ROOT: Final = Path(__file__).parents[1]
LEVEL_A: Final = ("pytorch", "jax", "tensorflow", "keras")
LEVEL_B: Final = tuple(name for name in framework_folders() if name not in LEVEL_A)
PYTHON: Final = "slipway-test/python{}:bookworm"
NOT_OF_PYTHON: Final = ("__pycache__", "test", "tests", "idlelib", "share")
FOR_SOURCES: Final = ("setuptools<81", "wheel")
"""With which pip builds a package that has no wheel."""
STORAGE: Final = '[storage]\ndriver = "overlay"\ngraphroot = "{0}/images"\nrunroot = "{0}/run"\n'
ENGINE: Final = '[engine]\ntmp_dir = "{0}/engine"\nevents_logger = "none"\nlock_type = "file"\ncgroup_manager = "cgroupfs"\n'
APART: Final = ["unshare", "--mount"]
"""What podman mounts is gone when it has ended."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """What an image is built on."""

    recipe: str
    tag: str
    image: Callable[[], Path]


def base_of(name: str) -> Base:
    """Debian 11 where the Dockerfile takes its packages; else Debian 12, with the Python that the framework needs."""
    version = load_framework(name).python_version
    if (load_framework(name).folder / "debian-packages.txt").is_file():
        return Base(recipe=images.base_recipe(images.OLD_SUITE, ""), tag=images.OLD_BASE, image=images.old_base_image)
    if version is None:
        return Base(recipe=images.base_recipe(), tag=images.BASE, image=images.base_image)
    tag = PYTHON.format(version)
    recipe = json.dumps([images.base_recipe(), tag, NOT_OF_PYTHON, 1])
    make = functools.partial(make_python, name, tag)
    return Base(recipe=recipe, tag=tag, image=lambda: images.made(f"python{version}", recipe, make))


def make_python(name: str, tag: str, target: Path) -> None:
    """As Docker Hub's images of Python have it in /usr/local: that of the framework's environment on this machine."""
    prefix = Path(interpreter(name)).resolve().parents[1]
    if prefix == Path("/usr"):
        raise RuntimeError(
            f"framework {name}: its environment has a Python in /usr, which cannot be taken along; one of pyenv's or uv's can"
        )
    with images.scratch() as directory:
        images.run(["tar", "-C", str(directory), "-x", "-f", str(images.base_image()), "layer.tar"])
        root, libraries = directory / "python", directory / "python" / "usr" / "lib" / "x86_64-linux-gnu"
        libraries.mkdir(parents=True)
        for part in ("bin", "include", "lib"):
            shutil.copytree(prefix / part, root / "usr/local" / part, symlinks=True, ignore=shutil.ignore_patterns(*NOT_OF_PYTHON))
        for library in (prefix / "lib").glob("libpython*.so.*"):  # where the loader looks without a cache
            (libraries / library.name).symlink_to(f"/usr/local/lib/{library.name}")
        images.write_archive(target, [directory / "layer.tar", images.layer_of(root)], tag, images.CONFIG)


def interpreter(name: str) -> str:
    """With which pip finds the wheels of a framework. Raises RuntimeError."""
    spec = load_framework(name)
    if spec.python_version is None:
        return sys.executable
    if why := what_is_missing(spec):
        raise RuntimeError(why)
    return own_python(spec) or sys.executable


def asked_of_pip(dockerfile: str) -> list[str]:
    """The packages that it installs, with its arguments as they are by default."""
    text = dockerfile.replace("\\\n", " ")
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE))
    text = re.sub(r"\$\{(\w+)\}", lambda found: arguments.get(found[1].upper(), ""), text)
    return [word for words in re.findall(r"pip install --no-cache-dir (.*?)(?:&&|$)", text, re.MULTILINE) for word in shlex.split(words)]


def recipe(name: str) -> str:
    """Without the programs that are copied into it: runs mount the folder over them, and building takes minutes."""
    dockerfile = (load_framework(name).folder / "Dockerfile").read_text()
    return json.dumps([base_of(name).recipe, asked_of_pip(dockerfile), dockerfile])


def missing_here(*names: str) -> str | None:
    """Why they are not there, in words: a test does not make them."""
    there = all(images.archive(name, recipe(name)).exists() for name in names)
    return None if there else f"images take minutes to make: `python -m tests.images {' '.join(names)}`"


def image(name: str) -> Path:
    """That of `make image`, for the CPU."""
    base_of(name).image()
    return images.made(name, recipe(name), functools.partial(make, name))


def make(name: str, target: Path) -> None:
    """Download, build, save."""
    base, tag = base_of(name), f"docker.io/{load_framework(name).image}"
    asked = asked_of_pip((load_framework(name).folder / "Dockerfile").read_text())
    with images.scratch() as directory, podman(directory) as env:
        wheels = directory / "wheels"
        if asked:
            more = ["--only-binary=:all:"] if load_framework(name).python_version is None else FOR_SOURCES
            images.run([interpreter(name), "-m", "pip", "download", "--quiet", "--dest", str(wheels), *asked, *more])
        images.run([*APART, "podman", "load", "--quiet", "--input", str(base.image())], env=env)
        build = [sys.executable, "-m", "containers.images.build", name, "--engine", "podman", "--base", base.tag, "--tag", tag]
        images.run([*APART, *build, *(["--wheels", str(wheels)] if asked else [])], env=env, cwd=ROOT)
        images.run([*APART, "podman", "save", "--quiet", "--format", "docker-archive", "--output", str(target), tag], env=env)


@contextmanager
def podman(directory: Path) -> Iterator[dict[str, str]]:
    """The environment in which it keeps everything there."""
    files = {"CONTAINERS_STORAGE_CONF": STORAGE, "CONTAINERS_CONF": ENGINE}
    for name, text in files.items():
        (directory / name).write_text(text.format(directory))
    yield {**os.environ, **{name: str(directory / name) for name in files}, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(directory)}
