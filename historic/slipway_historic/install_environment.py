"""Fill a directory with the environment of an older framework: with a Python of its time, or with packages of an old Debian.

`environment.installer` of framework.yaml names this program: `make framework` runs it with the Python of Slipway.

Packages of Debian need neither root nor containers: they are unpacked into the directory. Its programs name the loader that came with them,
and find its libraries beside it: by their headers, not by variables, which programs of this machine would inherit. So `bin/python` is an
interpreter like every other.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from base.errors import ConfigError, SlipwayError
from base.process import CODE_ROOT, last_lines, run
from base.publish import remove_tree
from containers.frameworks.spec import FrameworkSpec, read_framework
from containers.models import build

HERE: Final = Path(__file__).resolve().parent
PIP: Final = HERE / "pip.txt"
DEBIAN: Final = "debian-packages.txt"
LIBRARIES_OF_PROGRAMS: Final = (CODE_ROOT / "containers" / "lib", HERE / "lib")
INSTALL: Final = "slipway_install.py"
"""The program of a folder that needs more than packages, a program for the new environment, which finds the layers of a LeNet on its
standard input."""
INTERPRETER_S: Final = 30.0
"""How long a Python may take to say its version: from cold network storage it takes seconds."""
ASK_VERSION: Final = "import sys, venv, ensurepip; sys.stdout.write('%d.%d' % sys.version_info[:2])"
"""An interpreter without ensurepip makes no environments: Debian's python3 without python3-venv."""
MIRROR: Final = re.compile(r"\bhttps?://\S+/debian/?(?=\s|$)")
MIRROR_AGAIN_S: Final = 1.0
"""How long until a package is asked for again; then twice as long, and so on."""
MIRROR_SILENT_S: Final = 60.0
"""How long a mirror of packages may say nothing while one is fetched from it."""
DOWNLOADS: Final = 4
TRIES: Final = 4
"""How often a package is asked for, where the mirror has not refused it."""
MAX_BYTES: Final = 100 << 20
"""The most that a package may have; the largest one so far has 21 MB."""
LEFT_OUT: Final = re.compile(r"(\./)?usr/share/(doc|man|info|locale|lintian|icons)/")
ROOT: Final = "root"
LOADER: Final = "lib/x86_64-linux-gnu/ld-2.31.so"
LIBRARIES: Final = ("usr/lib/x86_64-linux-gnu/openblas-pthread", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib")
"""The directories in which Debian's loader looks, and before that what update-alternatives would choose of the libraries for matrices."""
OF_MPI: Final = """
# By Slipway: where Open MPI and PMIx have their parts, which they would look for in /usr.
import os as _os
_os.environ["OPAL_PREFIX"] = {usr!r}
_os.environ["PMIX_MCA_mca_base_component_path"] = {usr!r} + "/lib/x86_64-linux-gnu/pmix2/lib/pmix"
_os.environ["OMPI_MCA_mca_base_component_show_load_errors"] = _os.environ["PMIX_MCA_mca_base_component_show_load_errors"] = "0"
"""


def main() -> int:
    """Make the environment of the framework in FOLDER in PLACE."""
    parser = argparse.ArgumentParser(prog="install_environment.py", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--python", help="an interpreter of the version that the framework needs; looked for where it is not given")
    parser.add_argument("--debian", help="a mirror of Debian, for packages of an old version of it; that of apt where it is not given")
    options = parser.parse_args()
    try:
        if (options.folder / DEBIAN).is_file():
            unpack_packages(options.folder / DEBIAN, options.place, options.debian)
        else:
            install_by_pip(read_framework(options.folder / "framework.yaml"), options.place, options.python)
    except SlipwayError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


# An environment by pip, with a Python of the framework's time.


def install_by_pip(spec: FrameworkSpec, place: Path, interpreter: str | None) -> None:
    """Make `place` anew with the pins of the framework's folder.

    `interpreter` is where the Python that it needs is; None: it is looked for. What is built from source is built with the setuptools that
    PIP pins, not with the newest one of the index, which nobody has tried. Raises ConfigError.
    """
    pins = spec.folder / "requirements.txt"
    python = find_interpreter(spec.name, str(spec.python_version), interpreter, os.environ)
    own = str(place / "bin" / "python")
    pip = [own, "-m", "pip", "--disable-pip-version-check", "install"]
    if place.exists():
        remove_tree(place)
    advice = "Where it says that a compiler, a header (mpi.h) or a library is missing: docs/how-to/install.md names the system packages"
    _show([python, "-m", "venv", str(place)], advice)
    _show([*pip, "--require-hashes", "-r", str(PIP)], advice)
    _show([*pip, "--no-build-isolation", "--require-hashes", "-r", str(pins)], advice)
    if (spec.folder / INSTALL).is_file():
        layers = json.dumps(build("lenet", 1, (28, 28), 10).layers)
        _show([own, str(spec.folder / INSTALL)], "docs/how-to/install.md names the system packages it wants", layers)


def _show(argv: list[str], advice: str, given: str = "") -> None:
    """Run a command with its output on standard error. Raises ConfigError."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "slipway_reader").symlink_to(CODE_ROOT / "data_prep" / "reader")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([place, *map(str, LIBRARIES_OF_PROGRAMS)])}
        done = subprocess.run(argv, input=given, text=True, stdout=sys.stderr, env=env, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(argv)} ended with {done.returncode}, see above. {advice}")


def find_interpreter(framework: str, version: str, given: str | None, env: Mapping[str, str]) -> str:
    """Return the path of a Python `version`, such as 3.8: `given`, or the first one on PATH or of pyenv that answers. Raises ConfigError
    with all that was looked at.
    """
    if given is not None:
        problem = _problem(given, version, env)
        if problem is not None:
            raise ConfigError(f"framework {framework!r} needs Python {version}, and PYTHON={given} is none: {problem}")
        return given
    name = f"python{version}"
    on_path = [path for folder in env.get("PATH", "").split(os.pathsep) if (path := shutil.which(name, path=folder or "."))]
    versions = Path(env.get("PYENV_ROOT") or Path(env.get("HOME", "/"), ".pyenv"), "versions")
    kept = sorted(versions.glob(f"{version}.*/bin/{name}"), key=lambda path: [*map(int, re.findall(r"\d+", path.parts[-3]))], reverse=True)
    looked = ""
    for path in (*on_path, *map(str, kept)):
        problem = _problem(path, version, env)
        if problem is None:
            return path
        looked += f"  {path}: {problem}\n"
    raise ConfigError(
        f"framework {framework!r} needs Python {version}, and none that works is on PATH or in {versions}\n{looked}"
        f"`pyenv install {version}` or `uv python install {version}` installs it, without root; or say where it is: "
        f"make framework NAME={framework} PYTHON=/path/to/python{version}"
    )


def _problem(path: str, version: str, env: Mapping[str, str]) -> str | None:
    """Return why this is no Python of the version that can make an environment, or None."""
    try:
        done = run([path, "-c", ASK_VERSION], timeout_s=INTERPRETER_S, env=env)
    except SlipwayError as error:
        return str(error)
    if done.returncode:
        return f"it ended with {done.returncode}: {last_lines(done.stderr, 1)}"
    return None if done.stdout == version else f"it is Python {done.stdout}"


# An environment of packages of Debian.


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package that the pins name: its path in every mirror, and the SHA-256 of the file."""

    path: str
    digest: str


def unpack_packages(pins: Path, place: Path, mirror: str | None) -> None:
    """Make `place` anew with the packages of `pins`. `mirror` is the address that `dists` and `pool` lie below; None: the one that apt uses
    here. Raises ConfigError.
    """
    packages, root = read_pins(pins.read_text(encoding="utf-8")), place / ROOT
    if platform.machine() != "x86_64":
        raise ConfigError(f"{pins} names packages for x86_64, and this machine is {platform.machine()}: choose an engine with containers")
    address = (mirror or mirror_of_apt(Path("/etc/apt"))).rstrip("/")
    sys.stderr.write(f"{len(packages)} packages of Debian from {address}\n")
    if place.exists():
        remove_tree(place)
    root.mkdir(parents=True)
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        for package, content in zip(packages, pool.map(partial(fetch, address), packages), strict=True):
            unpack(package, content, root)
    name_loader(root)
    with (root / "usr/lib/python3/dist-packages/mpi4py/__init__.py").open("a", encoding="utf-8") as file:
        file.write(OF_MPI.format(usr=str(root / "usr")))
    (place / "bin").mkdir()
    (place / "bin/python").symlink_to(f"../{ROOT}/usr/bin/python3.9")
    modules = [str(root / "usr/lib" / name) for name in ("python3", "python3.9")]
    # Users of the group may not write there. Debian's Python has a file or two that are no Python: the exit code tells of these only.
    subprocess.run([str(place / "bin/python"), "-W", "ignore", "-m", "compileall", "-qq", *modules], stdin=subprocess.DEVNULL, check=False)


def read_pins(text: str) -> list[Package]:
    """Return the packages of lines `pool/....deb SHA-256`; others are comments."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [Package(path=path, digest=digest) for path, digest in rows]


def mirror_of_apt(directory: Path) -> str:
    """Return the first mirror of Debian that apt's sources in `directory` name. Raises ConfigError."""
    files = [directory / "sources.list", *sorted((directory / "sources.list.d").glob("*"))]
    for file in files:
        if file.is_file():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if (found := MIRROR.search(line.partition("#")[0])) is not None:
                    return found[0]
    raise ConfigError(
        f"no mirror of Debian is named in {directory}: say which one, by `make framework NAME=... DEBIAN=http://HOST/debian`; it has to "
        "have Debian 11, as the archive of old versions does"
    )


def fetch(address: str, package: Package) -> bytes:
    """Return the content of a package, which is the one that was pinned. Raises ConfigError."""
    url = f"{address}/{package.path}"
    for number in range(TRIES):
        try:
            with urllib.request.urlopen(url, timeout=MIRROR_SILENT_S) as answer:
                content: bytes = answer.read(MAX_BYTES)
            break
        except (OSError, http.client.HTTPException, ValueError) as error:
            refused = isinstance(error, ValueError) or (isinstance(error, urllib.error.HTTPError) and error.code < 429)
            if refused or number == TRIES - 1:
                raise ConfigError(
                    f"{url} cannot be fetched: {error}. Where this mirror has no Debian 11, name another one by DEBIAN=http://HOST/debian"
                ) from error
            time.sleep(MIRROR_AGAIN_S * 2**number)
    if (found := hashlib.sha256(content).hexdigest()) != package.digest:
        raise ConfigError(f"{url} is not the package that is pinned: SHA-256 {found}, expected {package.digest}")
    return content


def unpack(package: Package, content: bytes, root: Path) -> None:
    """Unpack the files of a package below `root`, links to `/...` too."""
    data = next(part for name, part in members_of(content) if name.startswith("data.tar"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [member for member in archive if LEFT_OUT.match(member.name) is None]
        for member in members:
            if member.issym() and member.linkname.startswith("/"):
                member.linkname = os.path.relpath(member.linkname, Path("/", member.name).parent)
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # not in Python before 3.11.4
        archive.extractall(root, members)
    sys.stderr.write(f"unpacked {Path(package.path).name}\n")


def members_of(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files of an `ar` archive, which a package of Debian is."""
    at = len(b"!<arch>\n")
    while at < len(archive):
        header = archive[at : at + 60]
        size = int(header[48:58])
        yield header[:16].decode().strip(), archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def name_loader(root: Path) -> None:
    """Write into programs which loader starts them and where libraries are looked for. A library that says so itself (RUNPATH) would look
    there only, and then on this machine: below its own place its words become RPATH, which is looked at beside the program's; others go.
    """
    places = os.pathsep.join(str(root / name) for name in LIBRARIES)
    patchelf = [str(root / LOADER), "--library-path", places, str(root / "usr/bin/patchelf")]
    libraries = [path for path in root.rglob("*.so*") if is_elf(path)]
    said = _call([*patchelf, "--print-rpath", *map(str, libraries)]).splitlines()
    for words in {word for word in said if word}:
        change = ["--force-rpath", "--set-rpath", words] if words.startswith("$ORIGIN") else ["--remove-rpath"]
        _call([*patchelf, *change, *(str(path) for path, own in zip(libraries, said, strict=True) if own == words)])
    programs = [str(path) for path in (root / "usr/bin").iterdir() if path.name != "patchelf" and is_elf(path)]
    _call([*patchelf, "--set-interpreter", str(root / LOADER), "--force-rpath", "--set-rpath", places, *programs])


def is_elf(path: Path) -> bool:
    """Return True for a program or a library, not for a link to one."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _call(argv: list[str]) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(argv)[:500]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
