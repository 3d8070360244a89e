"""Real container runtimes for tests, in directories of their own: `get-apptainer.sh DIR` fetches Apptainer, `build-enroot.sh ...` builds
enroot, `build-pyxis.sh ...` pyxis, which uses that enroot. Found on PATH, or in $SLIPWAY_TEST_RUNTIMES or ~/.cache/slipway-test-runtimes,
as <engine>/usr/bin or <engine>/bin. Beside them the schedulers that Debian does not have: `openpbs`, built by `build-openpbs.sh`, and
`openlava`, which speaks like LSF, by `build-openlava.sh`; $SLIPWAY_PBS and $SLIPWAY_LSF name other places."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Final

from tests import images


def place() -> Path:
    return Path(os.environ.get("SLIPWAY_TEST_RUNTIMES") or Path.home() / ".cache" / "slipway-test-runtimes")


def openpbs() -> Path:
    """Where OpenPBS is, if it is here."""
    return Path(os.environ.get("SLIPWAY_PBS") or place() / "openpbs")


def openlava() -> Path:
    """Where OpenLava is, if it is here."""
    return Path(os.environ.get("SLIPWAY_LSF") or place() / "openlava")


BY: Final = {"pyxis": "enroot"}
"""Whose programs it runs."""


def plugin() -> Path:
    """Pyxis itself, which is loaded by Slurm."""
    return place() / "pyxis" / "lib" / "spank_pyxis.so"


def path_of(engine: str) -> str | None:
    """PATH with the real engine in front; None where it is not here, or not what it needs of this machine."""
    if missing(engine) or not Path("/dev/fuse").exists():
        return None
    engine = BY.get(engine, engine)
    for directory in (place() / engine / "usr" / "bin", place() / engine / "bin"):
        if (directory / engine).exists():
            return f"{directory}:{os.environ['PATH']}"
    return os.environ["PATH"] if shutil.which(engine) else None


def missing(engine: str) -> list[str]:
    """Programs that it wants of the machine."""
    wanted = {"apptainer": ("squashfuse_ll", "mksquashfs"), "enroot": ("squashfuse", "mksquashfs", "unsquashfs", "jq")}
    return [program for program in wanted[BY.get(engine, engine)] if shutil.which(program) is None]


def environment(engine: str) -> dict[str, str]:
    """What the real one wants besides PATH: Apptainer of root sets a limit that only CAP_SYS_RESOURCE may set, unless told so."""
    return {"APPTAINER_USERNS": "1"} if engine == "apptainer" else {}


def image_of(engine: str, archive: Path) -> Path:
    """What `docker save` has written, as a file that the engine starts; made once."""
    target = archive.with_suffix(".sif" if engine == "apptainer" else ".sqsh")
    if target.exists():
        return target
    with images.locked():
        if not target.exists():
            with images.scratch() as directory:
                part = directory / target.name
                if engine == "apptainer":
                    quickly = ["--mksquashfs-args", "-comp gzip -Xcompression-level 1"]
                    env = {**os.environ, **environment(engine), "PATH": path_of(engine) or ""}
                    images.run(["apptainer", "build", *quickly, str(part), f"docker-archive:{archive}"], env=env)
                else:
                    root = directory / "root"
                    unpack(archive, root)
                    images.run(["mksquashfs", str(root), str(part), "-all-root", "-no-progress", "-comp", "lzo", "-noD"])
                part.rename(target)
    return target


def unpack(archive: Path, root: Path) -> None:
    """The layers of an image of tests, which take nothing away from each other, one upon the other; devices are left out."""
    root.mkdir()
    with tarfile.open(archive) as saved:
        (image,) = json.load(saved.extractfile("manifest.json") or io.BytesIO())
        for layer in image["Layers"]:
            with tarfile.open(fileobj=saved.extractfile(layer)) as files:
                members = [member for member in files if not member.isdev()]
                files.extractall(root, members, filter="tar")
