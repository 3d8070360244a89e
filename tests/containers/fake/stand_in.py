"""What the stand-ins of engines have in common: a root that is this machine's own system, read-only, with real mounts. Needs root."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "opt")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOT = "/mnt"


class Fails(Exception):
    """Of a mount: what the engine would say of it in words of its own."""


def mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Fails(f"mount {' '.join(words)}: {done.stderr.strip()}")


def bind(source: str, target: str, writable: bool) -> None:
    """Raises FileNotFoundError where there is no source; the target is made."""
    place = Path(target)
    if not Path(source).exists():
        raise FileNotFoundError(source)
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount("--bind", source, target)
    if not writable:
        mount("-o", "remount,bind,ro", target)


def make_root(device: str) -> None:
    """A tmpfs with the system in it; the caller adds to it, and closes it."""
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "-o", "mode=755", device, ROOT)
    for name in SYSTEM:
        here, there = Path("/", name), Path(ROOT, name)
        if here.is_symlink():
            there.symlink_to(here.readlink())
        elif here.is_dir():
            bind(str(here), str(there), False)
    for name in ("proc", "dev", "tmp", "var/tmp", "sys"):
        Path(ROOT, name).mkdir(parents=True)
    mount("--rbind", "/sys", f"{ROOT}/sys")


def show_gpus() -> None:
    """nvidia-smi of this machine, before all others; the real ones make a file beside the image's own."""
    smi = shutil.which("nvidia-smi")
    if smi:
        bind(str(Path(smi).parent), f"{ROOT}/usr/local/sbin", False)


def close_root() -> None:
    """Read-only from now on; this process is in it."""
    mount("-o", "remount,bind,ro", ROOT)
    os.chroot(ROOT)
    os.chdir("/")


def again_in(namespaces: Sequence[str], mark: str) -> None:
    """Start this program once more, in namespaces of its own; back to the caller in those."""
    if os.environ.pop(mark, None):
        return
    os.environ[mark] = "inside"
    os.execvp("unshare", ["unshare", *namespaces, "--", sys.argv[0], *sys.argv[1:]])
