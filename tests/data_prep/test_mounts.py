"""Which file system a path lies on, from texts of /proc/self/mountinfo."""

import pytest

from data_prep.mounts import Mount, mount_of, parse_mountinfo

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
61 27 0:52 /home /home rw,nosuid shared:1 - nfs4 filer:/export/home rw,vers=4.2,acregmin=3,acdirmax=120,hard
62 27 0:53 / /scratch rw,noatime shared:2 master:3 - lustre 10.1.0.1@o2ib:/scratch rw,flock
63 27 8:1 / /local rw - xfs /dev/nvme0n1 rw,noquota
64 27 0:60 / /dev/shm rw - tmpfs tmpfs rw,size=1000k
65 27 8:17 /jobs/4711/.4711 /tmp rw - ext4 /dev/sdb1 rw
66 27 0:61 / /remote\040data rw - fuse.sshfs me@host:/data rw
67 27 8:18 /tmp/systemd-private-12ab-x.service/tmp /var/tmp rw - ext4 /dev/sdb2 rw
68 61 0:70 / /home rw - nfs4 newer:/export/home rw,noac
69 27 0:71 / /merged rw - overlay overlay rw
a torn line
"""
MOUNTS = parse_mountinfo(MOUNTINFO)


def on(path: str) -> Mount:
    mount = mount_of(MOUNTS, path)
    assert mount is not None
    return mount


@pytest.mark.parametrize(
    ("path", "source", "kind"),
    [
        ("/home/ann", "newer:/export/home", "network"),  # mounted over the older one
        ("/scratch", "10.1.0.1@o2ib:/scratch", "network"),
        ("/scratchpad", "/dev/vda", "local"),
        ("/local/x/y", "/dev/nvme0n1", "local"),
        ("/dev/shm/x", "tmpfs", "memory"),
        ("/remote data/x", "me@host:/data", "network"),
        ("/merged", "overlay", "other"),
        ("/", "/dev/vda", "local"),
    ],
)
def test_which_file_system_a_path_lies_on(path: str, source: str, kind: str) -> None:
    assert (on(path).source, on(path).kind) == (source, kind)
