"""Real OpenSSH servers, each in a network namespace of its own, and a laptop whose `ssh` knows them alone."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SSHD: Final = "/usr/sbin/sshd"
SECRET: Final = "JBSWY3DPEHPK3PXP"
PROMPT: Final = b"Password: "
"""Of pam_exec, which the server hands on."""
START_S: Final = 20.0
NEEDED: Final = (SSHD, "/usr/bin/ssh", "/usr/bin/ssh-keygen", "ip", "unshare")
TOTP: Final = """import base64, hmac, struct, time
def code(at):
    digest = hmac.new(base64.b32decode({secret!r}), struct.pack(">Q", at // 30), "sha1").digest()
    start = digest[-1] & 15
    return f"{{(struct.unpack('>I', digest[start:start + 4])[0] & 0x7FFFFFFF) % 10**6:06d}}"
"""
CHECK: Final = "import sys, time\nnow = int(time.time())\nsys.exit(sys.stdin.read().strip('\\0\\n') not in (code(now), code(now - 30)))\n"
SHELL: Final = """#!/bin/sh
export HOME={home} PATH={path}
{noise}
exec {shell} -c "$SSH_ORIGINAL_COMMAND"
"""
CONFIG: Final = """
ListenAddress {address}
HostKey {directory}/host_key
PidFile {directory}/pid
AuthorizedKeysFile {directory}/authorized_keys
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
LogLevel VERBOSE
ForceCommand {directory}/shell
Banner {directory}/banner
UsePAM {pam}
KbdInteractiveAuthentication {pam}
{more}
"""


def missing() -> str | None:
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    return next((f"{one} is not here" for one in NEEDED if shutil.which(one) is None), None)


@dataclass(frozen=True, kw_only=True)
class Host:
    """A server that runs. `name`: of its namespace, and in the laptop's ssh configuration."""

    name: str
    address: str
    directory: Path
    home: Path

    def cut(self) -> None:
        """Nothing comes or goes, and nobody is told."""
        self._link("down")

    def heal(self) -> None:
        self._link("up")

    def shell(self, *, noise: str = "", shell: str = "/bin/sh", path: str | None = None) -> None:
        """What a login gets. `noise`: shell lines that it runs before each command."""
        text = SHELL.format(home=self.home, path=path or os.environ["PATH"], noise=noise, shell=shell)
        script(self.directory / "shell", text)

    def known_line(self) -> str:
        kind, key = (self.directory / "host_key.pub").read_text().split()[:2]
        return f"{self.address} {kind} {key}\n"

    def _link(self, state: str) -> None:
        subprocess.run(["ip", "-n", self.name, "link", "set", "eth0", state], check=True)
        if state == "up":
            subprocess.run(["ip", "-n", self.name, "route", "replace", "default", "dev", "eth0"], check=True)


@dataclass(frozen=True, kw_only=True)
class Laptop:
    """Its directory has the ssh configuration, the key and known_hosts; `environ` makes programs use them."""

    directory: Path
    environ: Mapping[str, str]

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    def knows(self, *hosts: Host) -> None:
        self.known_hosts.write_text("".join(host.known_line() for host in hosts))

    def configure(self, *hosts: Host, more: str = "") -> None:
        entries = "".join(f"Host {host.name}\n  HostName {host.address}\n  User root\n" for host in hosts)
        common = f"Host *\n  IdentityFile {self.directory}/key\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n"
        (self.directory / "config").write_text(f"{more}{entries}{common}  GlobalKnownHostsFile /dev/null\n")


def make_laptop(directory: Path) -> Laptop:
    directory.mkdir(parents=True)
    keygen(directory / "key")
    tools = directory / "bin"
    tools.mkdir()
    script(tools / "ssh", f'#!/bin/sh\nexec /usr/bin/ssh -F {directory}/config "$@"\n')
    script(tools / "askpass", f"#!{sys.executable}\n{TOTP.format(secret=SECRET)}print(code(int(time.time())))\n")
    runtime = tempfile.mkdtemp(prefix="slipway-run-", dir="/tmp")  # short, for sockets
    removed = ("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE")
    environ = {
        **{key: value for key, value in os.environ.items() if key not in removed},
        "PATH": f"{tools}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": runtime,
        "XDG_CONFIG_HOME": str(directory / "config-home"),
        "XDG_STATE_HOME": str(directory / "state"),
    }
    return Laptop(directory=directory, environ=environ)


def current_code() -> str:
    names: dict[str, Callable[[int], str]] = {}
    exec(TOTP.format(secret=SECRET), names)  # noqa: S102 - the text above
    return names["code"](int(time.time()))


def factor(laptop: Laptop) -> dict[str, str]:
    """What makes ssh ask a program for the second factor."""
    return {"SSH_ASKPASS": str(laptop.directory / "bin" / "askpass"), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}


@dataclass(frozen=True, kw_only=True)
class Person:
    """A process that has a terminal of its own, and somebody there who types the second factor whenever it is asked for."""

    process: subprocess.Popen[bytes]
    typing: threading.Thread

    def leaves(self) -> None:
        """Once the process has ended."""
        self.process.wait()
        self.typing.join()


def at_a_terminal(argv: list[str], environ: Mapping[str, str], cwd: Path, log: Path, code: Callable[[], str]) -> Person:
    """`log`: what the terminal shows. The process leads a session of its own."""
    ours, theirs = os.openpty()
    words = ["setsid", "--ctty", *argv]
    process = subprocess.Popen(words, env=dict(environ), cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    log.touch()
    typing = threading.Thread(target=_type, args=(ours, log, code))
    typing.start()
    return Person(process=process, typing=typing)


def _type(terminal: int, log: Path, code: Callable[[], str]) -> None:
    """Until nobody has the other end any more, which Linux tells by EIO."""
    answered = shown = b""
    with log.open("ab", buffering=0) as file:
        while True:
            try:
                data = os.read(terminal, 4096)
            except OSError:
                break
            file.write(data)
            shown += data
            if shown.count(PROMPT) > answered.count(PROMPT):
                answered = shown
                os.write(terminal, f"{code()}\n".encode())
    os.close(terminal)


@contextmanager
def server(directory: Path, laptop: Laptop, number: int, *, totp: bool = False, authority: Path | None = None) -> Iterator[Host]:
    """A server in a namespace; it and all that it started are gone at the end. `authority`: the key that signs its host key."""
    name, home = f"sw{os.getpid()}x{number}", directory / "home"
    address, near = f"10.{200 + number}.{os.getpid() % 250}.2", f"10.{200 + number}.{os.getpid() % 250}.1"
    home.mkdir(parents=True)
    host = Host(name=name, address=address, directory=directory, home=home)
    keygen(directory / "host_key")
    shutil.copy(laptop.directory / "key.pub", directory / "authorized_keys")
    host.shell()
    configure(host, totp=totp, more="" if authority is None else f"HostCertificate {sign(authority, host)}")
    lines = [
        f"netns add {name}",
        f"link add {name} type veth peer name eth0 netns {name}",
        f"addr add {near}/30 dev {name}",
        f"link set {name} up",
    ]
    inside = ["link set lo up", f"addr add {address}/30 dev eth0", "link set eth0 up", f"route add default via {near}"]
    try:
        _ip([], lines)
        _ip(["-n", name], inside)
        Path("/run/sshd").mkdir(exist_ok=True)
        bind = 'mount --bind "$1/pam.d" /etc/pam.d && exec ip netns exec "$2" "$1/slipway-sshd" -D -e -f "$1/sshd_config"'
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(["unshare", "-m", "sh", "-c", bind, "sh", str(directory), name], stderr=log, start_new_session=True)
        try:
            _await(directory / "pid", process)
            yield host
        finally:
            _end(process, name)
    finally:
        for argv in (["ip", "link", "del", name], ["ip", "netns", "del", name]):
            subprocess.run(argv, check=False, capture_output=True)


def configure(host: Host, *, totp: bool, more: str) -> None:
    directory = host.directory
    methods = "AuthenticationMethods publickey,keyboard-interactive" if totp else ""
    text = CONFIG.format(address=host.address, directory=directory, pam="yes" if totp else "no", more=f"{methods}\n{more}")
    (directory / "sshd_config").write_text(text)
    (directory / "banner").write_text("Unauthorised use is prohibited.\n")
    (directory / "slipway-sshd").symlink_to(SSHD)
    (directory / "check").write_text(f"#!{sys.executable}\n{TOTP.format(secret=SECRET)}{CHECK}")
    (directory / "check").chmod(0o700)
    (directory / "pam.d").mkdir()
    stack = f"auth required pam_exec.so quiet expose_authtok {directory}/check\nauth required pam_permit.so\n"
    stack += "account required pam_permit.so\nsession required pam_permit.so\n"
    (directory / "pam.d" / "slipway-sshd").write_text(stack)


def _ip(options: list[str], lines: list[str]) -> None:
    subprocess.run(["ip", *options, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True, capture_output=True)


def _await(file: Path, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + START_S
    while not file.exists():
        if process.poll() is not None or time.monotonic() > give_up:
            raise AssertionError(f"sshd did not start: {(file.parent / 'log').read_text()}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes], name: str) -> None:
    """The server, its sessions, and what they started: all that is in the namespace."""
    found = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True).stdout.split()
    for pid in found:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.kill()
    process.wait()


def keygen(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True, stdin=subprocess.DEVNULL)


def sign(authority: Path, host: Host) -> Path:
    """The certificate of the host's key, which OpenSSH looks for beside it."""
    key = host.directory / "host_key.pub"
    argv = ["ssh-keygen", "-q", "-s", str(authority), "-I", host.name, "-h", "-n", host.address, str(key)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return host.directory / "host_key-cert.pub"


def script(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
