"""Network namespaces and the links between them. The bridge has a namespace of its own, so nothing is seen of it on this machine."""

import contextlib
from pathlib import Path

from tests.minicluster.spec import ClusterError, Spec
from tests.minicluster.waiting import run

NETNS = Path("/run/netns")
STORAGE_BURST = 64 << 10


def create(spec: Spec) -> None:
    taken = [name for name in spec.namespaces if (NETNS / name).exists()]
    if taken:
        raise ClusterError(f"network namespaces {', '.join(taken)} exist already: choose another --name")
    ip_batch([], [f"netns add {name}" for name in spec.namespaces])
    lines = ["link add bridge type bridge", "link set bridge up"]
    for host in spec.hosts:
        lines += [
            f"link add {host} type veth peer name eth0 netns {spec.netns(host)}",
            f"link set {host} master bridge",
            f"link set {host} up",
        ]
    ip_batch(["-n", spec.netns("switch")], lines)
    for host in spec.hosts:
        ip_batch(["-n", spec.netns(host)], ["link set lo up", f"addr add {spec.address(host)}/16 dev eth0", "link set eth0 up"])
    for host in spec.hosts:
        limit(spec, host, spec.storage_mbit if host == "storage" else spec.link_mbit if host != "login" else None)


def ip_batch(options: list[str], lines: list[str]) -> None:
    run(["ip", *options, "-batch", "-"], "\n".join(lines) + "\n")


def set_link(spec: Spec, host: str, *, up: bool) -> None:
    """The cable, at the switch's end: the node sees its carrier go."""
    run(["ip", "-n", spec.netns("switch"), "link", "set", host, "up" if up else "down"])


def limit(spec: Spec, host: str, mbit: float | None) -> None:
    """Both directions of the host's link, at once and for connections that exist; None takes the limit away."""
    for netns, link in ((spec.netns("switch"), host), (spec.netns(host), "eth0")):
        run(["tc", "-n", netns, *limit_arguments(link, mbit)])


def limit_arguments(link: str, mbit: float | None) -> list[str]:
    if mbit is None:
        return ["qdisc", "replace", "dev", link, "root", "pfifo_fast"]
    burst = max(STORAGE_BURST, int(mbit * 1e6 / 8 * 0.004))  # 4 ms: a timer tick's worth, or fast links are too slow
    return ["qdisc", "replace", "dev", link, "root", "tbf", "rate", f"{int(mbit * 1e6)}bit", "burst", str(burst), "latency", "100ms"]


def remove(spec: Spec) -> None:
    """Links and bridge go with their namespaces."""
    for name in spec.namespaces:
        if (NETNS / name).exists():
            with contextlib.suppress(FileNotFoundError):
                run(["ip", "netns", "delete", name])
