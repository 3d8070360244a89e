"""One dockerd per host, inside its namespaces, with its data on the host's own disk and its socket in the host's own /run."""

from tests.minicluster import daemons, processes
from tests.minicluster.spec import ClusterError, Spec
from tests.minicluster.waiting import last_lines, wait_until

DATA_ROOT = "/local/docker"
START_LIMIT_S = 60.0
LOAD_LIMIT_S = 600.0
DAEMON = ("dockerd",)


def argv() -> list[str]:
    """The host's network is the containers' network: no bridge, no rules of its own. The hook's stand-in is on its PATH, as on ours."""
    places = [f"--data-root={DATA_ROOT}", "--exec-root=/run/docker", "--pidfile=/run/docker.pid", "--host=unix:///run/docker.sock"]
    network = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
    others = ["--exec-opt=native.cgroupdriver=cgroupfs", "--storage-driver=overlay2", "--log-level=warn", "--max-concurrent-uploads=1"]
    return ["setsid", "--fork", "dockerd", *places, *network, *others]


def start(spec: Spec, host: str) -> None:
    name = f"dockerd-{host}"
    daemons.start(spec, host, argv(), name)

    def answers() -> bool:
        if not processes.named(spec, host, (*DAEMON, "setsid")):  # by the name of the latter until it is executed
            raise ClusterError(f"dockerd of {host} ended: {last_lines(spec.log(f'{name}-start'))}")
        return daemons.answers(spec, host, "test", "-S", "/run/docker.sock") and daemons.answers(spec, host, "docker", "version")

    wait_until(answers, START_LIMIT_S, f"dockerd of {host} answers")


def control(spec: Spec, host: str, what: str) -> None:
    """stop, cont, kill, start or restart. Its containers live on when it is killed, and end when it ends or starts again."""
    if host not in spec.container_hosts:
        raise ClusterError(f"{host} has no dockerd: bring the cluster up with --docker, and choose among its login and compute nodes")
    daemons.control(spec, host, what, DAEMON, lambda: start(spec, host))
