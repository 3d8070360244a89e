"""What connects a machine to others, from trees as the kernel shows them, and what it says of itself."""

from pathlib import Path

from cluster.machine import MAX_INTERFACES, core_counts, facts, interfaces


def card(root: Path, name: str, *, state: str = "up", kind: str = "1", speed: str | None = "25000", physical: bool = True) -> None:
    (root / name).mkdir(parents=True)
    values = {"operstate": state, "type": kind} | ({} if speed is None else {"speed": speed})
    for file, value in values.items():
        (root / name / file).write_text(f"{value}\n")
    if physical:
        (root / name / "device").mkdir()


def port(root: Path, name: str, *, state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", layer: str = "InfiniBand") -> None:
    directory = root / name / "ports" / "1"
    directory.mkdir(parents=True)
    for file, value in {"state": state, "rate": rate, "link_layer": layer}.items():
        (directory / file).write_text(f"{value}\n")


def test_cards_and_ports_that_are_up_with_their_rates(tmp_path: Path) -> None:
    net, infiniband = tmp_path / "net", tmp_path / "infiniband"
    card(net, "eno1")
    card(net, "eno2", state="down")
    card(net, "ens3", speed="-1")
    card(net, "ens4", speed=None)
    card(net, "docker0", physical=False)
    card(net, "lo", kind="772", physical=False)
    card(net, "ib0", kind="32")
    port(infiniband, "mlx5_0")
    port(infiniband, "mlx5_1", state="1: DOWN")
    port(infiniband, "mlx5_2", rate="2.5 Gb/sec (1X SDR)", layer="Ethernet")
    assert interfaces(net, infiniband) == [
        {"name": "mlx5_0:1", "kind": "InfiniBand", "mbit_per_s": 400_000},
        {"name": "mlx5_2:1", "kind": "RDMA over Ethernet", "mbit_per_s": 2500},
        {"name": "eno1", "kind": "Ethernet", "mbit_per_s": 25_000},
        {"name": "ens3", "kind": "Ethernet", "mbit_per_s": None},
        {"name": "ens4", "kind": "Ethernet", "mbit_per_s": None},
    ]


def test_a_machine_without_any(tmp_path: Path) -> None:
    assert interfaces(tmp_path / "net", tmp_path / "infiniband") == []


def test_many_are_cut(tmp_path: Path) -> None:
    for index in range(MAX_INTERFACES + 3):
        card(tmp_path, f"eth{index}")
    assert len(interfaces(tmp_path, tmp_path / "none")) == MAX_INTERFACES


def test_this_machine_counts_its_cores_and_connections() -> None:
    cores = core_counts()
    assert 1 <= cores["sockets"] <= cores["cores"] <= cores["cpus"]
    found = facts()
    assert found["machine_cores"] == cores
    assert found["network"] == interfaces()
