"""Build a cluster and take it away: what is done in which order. Whatever is made has a name that was written down before."""

import contextlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.minicluster import dockerd, hosts, network, processes, registry, schedulers, storage, texts
from tests.minicluster.spec import USER_ID, ClusterError, Spec, read_state, write_state

START_LIMIT_S = 60.0
PARALLEL = 8
ACCOUNT_FILES = ("passwd", "group", "shadow")


def claim(spec: Spec) -> None:
    """Name and directory, in the order in which `down` needs them."""
    registry.add(spec.name, spec.directory)
    try:
        spec.root.mkdir(parents=True, exist_ok=True)
        if any(spec.root.iterdir()):
            raise ClusterError(f"{spec.root} is not empty: choose another --dir; if a lost cluster left it, `down --dir {spec.root}`")
        write_state(spec)
    except BaseException:
        registry.remove(spec.name)
        raise


def build(spec: Spec) -> None:
    scheduler = schedulers.of(spec)
    for path in (spec.shared / "slipway", spec.home, spec.root / "log", spec.root / "accounts"):
        path.mkdir(parents=True)
    os.chown(spec.home, USER_ID, USER_ID)
    (spec.shared / "slipway").chmod(0o1777)
    (spec.root / "hosts").write_text(texts.hosts_file(spec))
    for name in ACCOUNT_FILES:
        (spec.root / "accounts" / name).write_text(texts.with_user(name, Path("/etc", name).read_text(), str(spec.home)))
    (spec.root / "accounts" / "shadow").chmod(0o600)
    scheduler.prepare(spec)
    if spec.storage_mbit is not None:
        storage.make_keys(spec)
    network.create(spec)
    switch_on(spec, spec.hosts)
    scheduler.start_head(spec)
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(lambda host: scheduler.start_node(spec, host), spec.compute_nodes))
    scheduler.await_usable(spec, spec.compute_nodes, START_LIMIT_S)
    spec.site_file.write_text(texts.site_yaml(spec))


def switch_on(spec: Spec, names: tuple[str, ...]) -> None:
    for host in names:
        hosts.switch_on(spec, host)
    for host in names:
        hosts.await_ready(spec, host)
    if spec.storage_mbit is not None:
        if "storage" in names:
            storage.serve(spec)
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(lambda host: storage.mount(spec, host), [host for host in names if host != "storage"]))
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(lambda host: dockerd.start(spec, host), [host for host in names if host in spec.container_hosts]))


def remove_named(name: str) -> None:
    """As `remove`, also where `up` was killed before it had said what it makes."""
    directory = registry.begun_directory_of(name)
    if directory is not None and (directory / "state.json").exists():
        remove(read_state(directory))
        return
    if directory is not None:
        for part in directory.glob(".state.json.part-*"):
            part.unlink()
        with contextlib.suppress(OSError):
            directory.rmdir()
    registry.remove(name)


def remove(spec: Spec) -> None:
    """Everything that carries the cluster's names, from any state it was left in; its directory and its name last."""
    for host in spec.hosts:
        hosts.drop_disk(spec, host)
        processes.kill_all(spec, host)
    network.remove(spec)
    for path in processes.of_cluster(spec):
        processes.remove_cgroups(path)
    shutil.rmtree(spec.root, ignore_errors=True)
    if spec.root.exists():
        raise ClusterError(f"{spec.root} could not be removed whole: look what is in it, then `down` again")
    registry.remove(spec.name)
