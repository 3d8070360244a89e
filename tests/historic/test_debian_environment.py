"""Environments from packages of an old Debian: what is fetched and unpacked, and that nothing of this machine is loaded into them."""

import hashlib
import io
import json
import subprocess
import tarfile
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from slipway_historic import install_environment
from slipway_historic.install_environment import Package, fetch, mirror_of_apt, read_pins, unpack, unpack_packages

from base.errors import ConfigError
from containers.frameworks import framework_folders, load_framework
from tests.containers.frameworks.programs import interpreter

OWN = [name for name, folder in framework_folders().items() if (folder / "debian-packages.txt").is_file()]
LOOK = """
import json, subprocess, sys
import mpi4py
mpi4py.rc.initialize = False
import mpi4py.MPI, numpy, PIL.Image, socket
if sys.argv[1] == "caffe":
    import caffe
else:
    from caffe2.python import core
again = subprocess.run([sys.executable, "-c", "import sys; print(sys.executable)"], stdout=subprocess.PIPE, check=True)
with open("/proc/self/maps") as file:
    libraries = sorted({line.split()[-1] for line in file if ".so" in line})
socket.getaddrinfo("localhost", 80)
print(json.dumps([sys.executable, again.stdout.decode().strip(), sys.prefix, libraries]))
"""


def package(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    """A package of Debian with these files and symbolic links."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, io.BytesIO(text))
        for name, target in links.items():
            member = tarfile.TarInfo(f"./{name}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": content.getvalue()}
    padded = (
        f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(part):<10}`\n".encode() + part + b"\n" * (len(part) % 2)
        for name, part in parts.items()
    )
    return b"!<arch>\n" + b"".join(padded)


def test_a_package_is_unpacked_without_its_pages(tmp_path: Path) -> None:
    content = package(
        {"usr/bin/tool": b"tool", "usr/share/doc/tool/README": b"..."}, {"usr/lib/tool.py": "/etc/tool.py", "lib/a": "../usr"}
    )
    unpack(Package(path="pool/tool_1_amd64.deb", digest=""), content, tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()) == [
        "usr/bin/tool",
        "usr/lib/tool.py",
    ]
    assert (tmp_path / "usr/lib/tool.py").readlink() == Path("../../etc/tool.py")
    assert (tmp_path / "lib/a").readlink() == Path("../usr")
    assert (tmp_path / "usr/bin/tool").stat().st_mode & 0o111


def test_only_the_pinned_package_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(b"content")
    address = tmp_path.as_uri()
    assert fetch(address, Package(path="a.deb", digest=hashlib.sha256(b"content").hexdigest())) == b"content"
    with pytest.raises(ConfigError, match=r"a\.deb is not the package that is pinned: SHA-256 ed7002.*, expected abc"):
        fetch(address, Package(path="a.deb", digest="abc"))
    with pytest.raises(ConfigError, match=r"b\.deb cannot be fetched: .*name another one by DEBIAN=http://HOST/debian"):
        fetch(address, Package(path="b.deb", digest="abc"))
    with pytest.raises(ConfigError, match=r"nowhere/b\.deb cannot be fetched: unknown url type"):
        fetch("nowhere", Package(path="b.deb", digest="abc"))


@pytest.mark.processes
@pytest.mark.parametrize(("code", "tries"), [(503, 2), (404, 1)])
def test_a_package_comes_with_a_later_try_where_the_mirror_is_busy(monkeypatch: pytest.MonkeyPatch, code: int, tries: int) -> None:
    monkeypatch.setattr(install_environment, "MIRROR_AGAIN_S", 0.0)
    asked: list[str] = []

    class Mirror(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(code if len(asked) == 1 else 200)
            self.end_headers()
            self.wfile.write(b"content")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Mirror) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            with nullcontext() if code == 503 else pytest.raises(ConfigError, match="HTTP Error 404"):
                assert fetch(address, Package(path="a.deb", digest=hashlib.sha256(b"content").hexdigest())) == b"content"
        finally:
            server.shutdown()
            serving.join()
    assert asked == ["/a.deb"] * tries


def test_the_mirror_is_that_of_apt(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no mirror of Debian is named in .*DEBIAN=http://HOST/debian"):
        mirror_of_apt(tmp_path)
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "others.list").write_text("deb https://other.example/debian-tools stable main\n")
    (tmp_path / "sources.list.d" / "debian.sources").write_text("# URIs: http://no.example/debian\nURIs: http://a.example/debian\n")
    assert mirror_of_apt(tmp_path) == "http://a.example/debian"
    (tmp_path / "sources.list").write_text("deb [arch=amd64] http://b.example/mirror/debian/ bookworm main\n")
    assert mirror_of_apt(tmp_path) == "http://b.example/mirror/debian/"


@pytest.mark.parametrize("name", OWN)
def test_pins_are_of_debian_and_sorted(name: str) -> None:
    packages = read_pins((load_framework(name).folder / "debian-packages.txt").read_text())
    names = [Path(one.path).name.partition("_")[0] for one in packages]
    assert names == sorted(set(names))
    assert all(one.path.startswith("pool/main/") and one.path.endswith(("_all.deb", "_amd64.deb")) for one in packages)
    assert {"python3.9-minimal", "libc6", "patchelf", "python3-mpi4py", "python3-pil"} <= set(names)


def test_a_failed_fetch_leaves_no_interpreter(tmp_path: Path) -> None:
    pins, place = tmp_path / "debian-packages.txt", tmp_path / "place"
    pins.write_text("# nothing\npool/a.deb abc\n")
    (place / "bin").mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be fetched"):
        unpack_packages(pins, place, "file:///nowhere/")
    assert not (place / "bin").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_nothing_of_this_machine_is_loaded(name: str) -> None:
    python = interpreter(name)
    place = Path(python).parents[1]
    done = subprocess.run([python, "-c", LOOK, name], stdout=subprocess.PIPE, check=True, env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"})
    executable, again, prefix, libraries = json.loads(done.stdout)
    assert (executable, again, Path(prefix).resolve()) == (python, python, (place / "root" / "usr").resolve())
    assert len(libraries) > 20
    assert [library for library in libraries if not library.startswith((str(place), str(place.resolve())))] == []
