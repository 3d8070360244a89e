"""Images for tests, made here since no registry can be reached: `python -m tests.images base|mpi|FRAMEWORK ...` prints their archives.

Made once per machine and kept by the content of what they are made from, in $SLIPWAY_TEST_IMAGES or ~/.cache/slipway-test-images, which the
nodes of a mini-cluster see too. base: Debian's smallest system with Python and pip. mpi: base, with this machine's own files of Debian's
Open MPI. FRAMEWORK: its Dockerfile on base.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BASE = "slipway-test/base:bookworm"
SUITE = "bookworm"
PACKAGES = "python3,python3-pip"
NOT_NEEDED = ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt/lists", "var/log")
CONFIG = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["bash"]}
OLD_BASE = "slipway-test/base:bullseye"
OLD_SUITE = "bullseye"
MPI = "slipway-test/mpi:bookworm"
OPEN_MPI = "openmpi-bin"
LIMIT_S = 900
NICE = ["nice", "-n", "19"]


def cache() -> Path:
    directory = Path(os.environ.get("SLIPWAY_TEST_IMAGES") or Path.home() / ".cache" / "slipway-test-images")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def missing_here() -> str | None:
    """Why none can be made here, in words; None where they can, or are there."""
    if archive("base", base_recipe()).exists():
        return None
    if os.geteuid() != 0:
        return "images for tests are made by debootstrap, as root"
    return None if shutil.which("debootstrap") else "debootstrap is not installed"


def archive(name: str, recipe: str) -> Path:
    return cache() / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.tar"


@contextmanager
def locked() -> Iterator[None]:
    with (cache() / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory beside the archives, for a while."""
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        yield Path(directory)


def made(name: str, recipe: str, make: Callable[[Path], None]) -> Path:
    """The archive of that recipe; made under a hidden name first."""
    target = archive(name, recipe)
    if not target.exists():
        with locked():
            if not target.exists():
                part = target.with_name(f".{target.name}")
                make(part)
                part.rename(target)
    return target


def run(argv: list[str], **options: Any) -> str:
    done = subprocess.run([*NICE, *argv], capture_output=True, text=True, check=False, timeout=LIMIT_S, **options)
    if done.returncode:
        raise RuntimeError(f"{argv} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def base_recipe(suite: str = SUITE, packages: str = PACKAGES) -> str:
    return json.dumps([suite, packages, NOT_NEEDED, CONFIG, 1])


def mirror() -> str:
    """Where this machine's own packages come from."""
    found = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {SUITE}"]).splitlines()
    if not found:
        raise RuntimeError(f"apt knows no mirror of {SUITE}: `apt-get update`, or another SUITE in {__file__}")
    return found[0]


def base_image() -> Path:
    """As `docker save` would write it."""
    return made("base", base_recipe(), make_base)


def old_base_image() -> Path:
    """Of Debian 11, without Python, as Docker Hub's is."""
    return made("old-base", base_recipe(OLD_SUITE, ""), lambda target: make_base(target, OLD_SUITE, "", OLD_BASE))


def make_base(target: Path, suite: str = SUITE, packages: str = PACKAGES, tag: str = BASE) -> None:
    with scratch() as directory:
        root = directory / "layer"
        run(["debootstrap", "--variant=minbase", *([f"--include={packages}"] if packages else []), suite, str(root), mirror()])
        for name in NOT_NEEDED:
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir()
        write_archive(target, [layer_of(root)], tag, CONFIG)


def layer_of(root: Path) -> Path:
    """A layer with these files, beside them."""
    layer = root.with_name(f"{root.name}.tar")
    order = ["--sort=name", "--numeric-owner", "--mtime=@0", "--one-file-system"]
    run(["tar", "-C", str(root), "-c", *order, "-f", str(layer), "."])
    return layer


def mpi_missing_here() -> str | None:
    """Why no image with Open MPI can be made here, in words."""
    if archive("mpi", mpi_recipe()).exists():
        return None
    return missing_here() or (None if shutil.which("mpirun.openmpi") else "Open MPI is not here (openmpi-bin)")


def mpi_recipe() -> str:
    return json.dumps([base_recipe(), run(["dpkg-query", "--show", "--showformat", "${Package} ${Version}", OPEN_MPI]), 1])


def mpi_image() -> Path:
    """A second layer on the first: a mirror need not be asked, and an engine that has the first one does not take it again."""
    base_image()
    return made("mpi", mpi_recipe(), make_mpi)


def make_mpi(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        run(["tar", "-C", directory, "-x", "-f", str(base_image()), "layer.tar"])
        base, own = Path(directory, "layer.tar"), Path(directory, "mpi.tar")
        there = {name.removeprefix(".") for name in run(["tar", "-t", "-f", str(base)]).splitlines()}
        listed = ["apt-cache", "depends", "--recurse", "--installed", "--no-suggests", "--no-recommends", "--no-conflicts", "--no-breaks"]
        packages = {line for line in run([*listed, "--no-replaces", "--no-enhances", OPEN_MPI]).splitlines() if line[:1].isalnum()}
        files = {Path(name) for name in run(["dpkg", "--listfiles", *sorted(packages)]).splitlines() if name.startswith("/")}
        files |= {Path("/usr/bin/mpirun"), Path("/etc/alternatives/mpirun")}
        wanted = {str(file.parent.resolve() / file.name) for file in files if file.is_symlink() or file.is_file()} - there
        words = "".join(f"{name[1:]}\n" for name in sorted(wanted) if not name[1:].startswith(NOT_NEEDED))
        Path(directory, "files").write_text(words)
        run(["tar", "-C", "/", "-c", "--numeric-owner", "--mtime=@0", "-f", str(own), "--no-recursion", "-T", f"{directory}/files"])
        write_archive(target, [base, own], MPI, CONFIG)


def write_archive(target: Path, layers: Sequence[Path], tag: str, config: dict[str, Any]) -> str:
    """Layers of one directory as an image that docker and podman load; its id. No daemon is asked."""
    diffs = [hashlib.sha256(layer.read_bytes()).hexdigest() for layer in layers]
    image: dict[str, Any] = {"architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z", "config": config}
    image |= {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}" for diff in diffs]}}
    image |= {"history": [{"created_by": "tests/images.py"}] * len(layers)}
    text = json.dumps(image, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()
    directory, names = layers[0].parent, [layer.name for layer in layers]
    (directory / f"{name}.json").write_text(text)
    (directory / "manifest.json").write_text(json.dumps([{"Config": f"{name}.json", "RepoTags": [tag], "Layers": names}]))
    order = ["--sort=name", "--numeric-owner", "--owner=0", "--group=0", "--mtime=@0"]
    run(["tar", "-C", str(directory), "-c", *order, "-f", str(target), "manifest.json", f"{name}.json", *names])
    return f"sha256:{name}"


def tiny_image(directory: Path, content: str, tag: str) -> Path:
    """An image of a few bytes, which nothing can run in: for pinning, archiving and loading."""
    (directory / "root").mkdir(parents=True)
    (directory / "root" / "content").write_text(content)
    run(["tar", "-C", str(directory / "root"), "-c", "--mtime=@0", "-f", str(directory / "layer.tar"), "."])
    write_archive(directory / "image.tar", [directory / "layer.tar"], tag, CONFIG)
    return directory / "image.tar"


def main() -> None:
    from tests import framework_images  # noqa: PLC0415 - which imports this module

    makers: dict[str, Callable[[], Path]] = {"base": base_image, "mpi": mpi_image}
    parser = argparse.ArgumentParser(prog="python -m tests.images", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*makers, *framework_images.LEVEL_A, *framework_images.LEVEL_B], metavar="NAME")
    for name in parser.parse_args().names:
        sys.stdout.write(f"{makers[name]() if name in makers else framework_images.image(name)}\n")


if __name__ == "__main__":
    main()
