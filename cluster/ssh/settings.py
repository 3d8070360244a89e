"""What the user's ssh configuration says of a host, asked of `ssh -G` where that is there: other readers of the file understand Include,
Match and tags wrongly. Without it, what the host's name says, and the files that ssh has by default."""

from __future__ import annotations

import getpass
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.command import run
from base.errors import RemoteError
from cluster.ssh.limits import CONFIG_S

KEYS: Final = ("id_ed25519", "id_ecdsa", "id_rsa")
KNOWN: Final = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """Of one host. `alias`: the name under which its key is known; `proxy`: by which host or command it is reached."""

    hostname: str
    port: int
    user: str
    alias: str
    identity_files: tuple[str, ...]
    known_hosts: tuple[str, ...]
    proxy: str | None = None


def settings_of(host: str) -> HostSettings:
    """Raises RemoteError."""
    if shutil.which("ssh") is None:
        return by_name(host, getpass.getuser())
    result = run(["ssh", "-G", "--", host], timeout_s=CONFIG_S)
    if result.returncode:
        raise RemoteError(f"the ssh configuration of {host} cannot be read: {result.stderr.strip()}")
    return parse_settings(result.stdout)


def by_name(host: str, user: str) -> HostSettings:
    """Pure: of `USER@HOST` or `HOST`."""
    given, _, name = host.rpartition("@")
    files = tuple(expanded(f"~/.ssh/{key}") for key in KEYS)
    return HostSettings(
        hostname=name, port=22, user=given or user, alias=name, identity_files=files, known_hosts=tuple(map(expanded, KNOWN))
    )


def parse_settings(text: str) -> HostSettings:
    """Of the output of `ssh -G`. Raises RemoteError."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)
    try:
        hostname, port, user = found["hostname"][0], int(found["port"][0]), found["user"][0]
    except (LookupError, ValueError) as error:
        raise RemoteError(f"`ssh -G` says no hostname, port and user: {text[:300]!r}") from error
    files = " ".join(found.get("userknownhostsfile", []) + found.get("globalknownhostsfile", [])).split()
    proxies = [found[key][0] for key in ("proxyjump", "proxycommand") if found.get(key, ["none"])[0] not in ("none", "")]
    return HostSettings(
        hostname=hostname,
        port=port,
        user=user,
        alias=found.get("hostkeyalias", [hostname])[0],
        identity_files=tuple(expanded(file) for file in found.get("identityfile", [])),
        known_hosts=tuple(map(expanded, files)),
        proxy=proxies[0] if proxies else None,
    )


def expanded(path: str) -> str:
    """With the user's home directory."""
    return str(Path(path).expanduser())
