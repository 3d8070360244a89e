"""Shared storage behind one link: every host mounts it by sshfs from the host `storage`, whose link has the speed asked for.

There is no NFS server for network namespaces here. What is alike: one link for all, a client that waits while the link is down, files
seen by others when they are closed, O_EXCL, rename and link decided by the server, fsync that reaches the server's disk. What is not:
flock and fcntl locks hold among the processes of one host only.
"""

from tests.minicluster import daemons
from tests.minicluster.spec import Spec
from tests.minicluster.waiting import run

CIPHER = "aes128-gcm@openssh.com"


def sshd_config(spec: Spec) -> str:
    keys = spec.root / "ssh"
    return f"""\
ListenAddress {spec.address("storage")}
HostKey {keys}/host
PidFile {keys}/sshd.pid
AuthorizedKeysFile {keys}/client.pub
AuthenticationMethods publickey
PermitRootLogin prohibit-password
UsePAM no
# The keys are ours; the directory above them may be /tmp
StrictModes no
Ciphers {CIPHER}
Compression no
MaxStartups 1000
MaxSessions 10
Subsystem sftp internal-sftp
ForceCommand internal-sftp
"""


def make_keys(spec: Spec) -> None:
    keys = spec.root / "ssh"
    keys.mkdir(mode=0o700)
    for name in ("host", "client"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"minicluster {spec.name}", "-f", str(keys / name)])
    (keys / "known_hosts").write_text(f"storage {(keys / 'host.pub').read_text()}")
    (keys / "sshd_config").write_text(sshd_config(spec))


def serve(spec: Spec) -> None:
    daemons.command(spec, "storage", ["mkdir", "-p", "/run/sshd"])
    daemons.start(spec, "storage", ["/usr/sbin/sshd", "-f", str(spec.root / "ssh" / "sshd_config"), "-E", str(spec.log("sshd"))], "sshd")


def mount_argv(spec: Spec) -> list[str]:
    """No caches but those that every close and open renew, as NFS; no giving up while the link is down."""
    keys = spec.root / "ssh"
    ssh = {
        "BatchMode": "yes",
        "IdentityFile": f"{keys}/client",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": f"{keys}/known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "Ciphers": CIPHER,
        "Compression": "no",
        "TCPKeepAlive": "no",
        "ServerAliveInterval": "0",
    }
    sshfs = ("dir_cache=no", "attr_timeout=0", "entry_timeout=0", "negative_timeout=0", "allow_other", "default_permissions", "idmap=none")
    options = [*sshfs, "reconnect", *(f"{name}={value}" for name, value in ssh.items())]
    return ["sshfs", "-F", "/dev/null", f"root@storage:{spec.shared}", str(spec.shared), "-o", ",".join(options)]


def mount(spec: Spec, host: str) -> None:
    daemons.start(spec, host, mount_argv(spec), f"sshfs-{host}")
