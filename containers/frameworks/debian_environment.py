"""A framework's environment from packages of an old Debian, without root and without containers: they are unpacked below its place.

Its programs name the loader that came with them, and find its libraries beside it: by their headers, not by variables, which programs of
this machine would inherit. So `bin/python` is an interpreter like every other.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import platform
import re
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.removing import remove_tree
from containers.limits import MIRROR_AGAIN_S, MIRROR_SILENT_S

MIRROR: Final = re.compile(r"\bhttps?://\S+/debian/?(?=\s|$)")
DOWNLOADS: Final = 4
TRIES: Final = 4
"""Of a package, where what failed may pass."""
MAX_BYTES: Final = 100 << 20
"""Of a package; the largest one so far has 21 MB."""
LEFT_OUT: Final = re.compile(r"(\./)?usr/share/(doc|man|info|locale|lintian|icons)/")
ROOT: Final = "root"
LOADER: Final = "lib/x86_64-linux-gnu/ld-2.31.so"
LIBRARIES: Final = ("usr/lib/x86_64-linux-gnu/openblas-pthread", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib")
"""Where Debian's loader looks, and before that what update-alternatives would choose of the libraries for matrices."""
OF_MPI: Final = """
# By Slipway: where Open MPI and PMIx have their parts, which they would look for in /usr.
import os as _os
_os.environ["OPAL_PREFIX"] = {usr!r}
_os.environ["PMIX_MCA_mca_base_component_path"] = {usr!r} + "/lib/x86_64-linux-gnu/pmix2/lib/pmix"
_os.environ["OMPI_MCA_mca_base_component_show_load_errors"] = _os.environ["PMIX_MCA_mca_base_component_show_load_errors"] = "0"
"""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A line of the pins: where it lies in every mirror, and the SHA-256 of the file."""

    path: str
    digest: str


def unpack_packages(pins: Path, place: Path, mirror: str | None) -> None:
    """Make `place` anew. `mirror`: the address that `dists` and `pool` lie below; None: the one that apt uses here. Raises ConfigError."""
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
    """Of lines `pool/....deb SHA-256`, and of comments."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [Package(path=path, digest=digest) for path, digest in rows]


def mirror_of_apt(directory: Path) -> str:
    """The first mirror of Debian that apt's sources in `directory` name. Raises ConfigError."""
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
    """The package, which is the one that was pinned. Raises ConfigError."""
    url = f"{address}/{package.path}"
    for number in range(TRIES):
        try:
            with urllib.request.urlopen(url, timeout=MIRROR_SILENT_S) as answer:
                content: bytes = answer.read(MAX_BYTES)
            break
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not is_passing(error) or number == TRIES - 1:
                raise ConfigError(
                    f"{url} cannot be fetched: {error}. Where this mirror has no Debian 11, name another one by DEBIAN=http://HOST/debian"
                ) from error
            time.sleep(MIRROR_AGAIN_S * 2**number)
    if (found := hashlib.sha256(content).hexdigest()) != package.digest:
        raise ConfigError(f"{url} is not the package that is pinned: SHA-256 {found}, expected {package.digest}")
    return content


def is_passing(error: Exception) -> bool:
    """Whether the next try may well succeed: a name server that does not answer now, a connection that was cut, a mirror that is busy."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (429, 500, 502, 503, 504)
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, socket.gaierror):
        return reason.errno == socket.EAI_AGAIN
    return isinstance(reason, ConnectionError | TimeoutError | http.client.IncompleteRead)


def unpack(package: Package, content: bytes, root: Path) -> None:
    """Its files below `root`, links to `/...` too."""
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
    """Name and content of the files of an `ar` archive, which a package of Debian is."""
    at = len(b"!<arch>\n")
    while at < len(archive):
        header = archive[at : at + 60]
        size = int(header[48:58])
        yield header[:16].decode().strip(), archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def name_loader(root: Path) -> None:
    """Write into programs which loader starts them and where libraries are looked for. A library that says so itself (RUNPATH) would look
    there only, and then on this machine: below its own place its words become RPATH, which is looked at beside the program's; others go."""
    places = os.pathsep.join(str(root / name) for name in LIBRARIES)
    patchelf = [str(root / LOADER), "--library-path", places, str(root / "usr/bin/patchelf")]
    libraries = [path for path in root.rglob("*.so*") if is_elf(path)]
    said = run([*patchelf, "--print-rpath", *map(str, libraries)]).splitlines()
    for words in {word for word in said if word}:
        change = ["--force-rpath", "--set-rpath", words] if words.startswith("$ORIGIN") else ["--remove-rpath"]
        run([*patchelf, *change, *(str(path) for path, own in zip(libraries, said, strict=True) if own == words)])
    programs = [str(path) for path in (root / "usr/bin").iterdir() if path.name != "patchelf" and is_elf(path)]
    run([*patchelf, "--set-interpreter", str(root / LOADER), "--force-rpath", "--set-rpath", places, *programs])


def is_elf(path: Path) -> bool:
    """A program or a library, not a link to one."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def run(argv: list[str]) -> str:
    """What it printed. Raises ConfigError."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(argv)[:500]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
