"""Hardware in the words that a reader buys by."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.workflow.report.builder import collected, make_cell, make_record
from workflow.report.page import page
from workflow.run.record.model import Interface, MachineCores, Node
from workflow.run.record.parquet_columns import machine_words, machines_of

CORES = MachineCores(sockets=2, cores=40, cpus=80)
LINKS = [Interface(name=f"mlx5_{index}:1", kind="InfiniBand", mbit_per_s=400_000) for index in range(8)]


def test_a_node_with_everything() -> None:
    gpus = ("NVIDIA H100 80GB HBM3",) * 8
    network = [*LINKS, Interface(name="eno1", kind="Ethernet", mbit_per_s=25_000)]
    assert machine_words("Intel Xeon Gold 6230", CORES, 201_863_462_912, gpus, network) == (
        "2 × Intel Xeon Gold 6230, 40 cores (80 threads), 188 GiB memory, 8 × NVIDIA H100 80GB HBM3, "
        "Ethernet 25 Gbit/s, 8 × InfiniBand 400 Gbit/s"
    )


@pytest.mark.parametrize(
    ("cpu", "cores", "memory_bytes", "network", "words"),
    [
        (None, None, None, [], ""),
        ("ARM", MachineCores(sockets=1, cores=1, cpus=1), 512 << 20, [], "ARM, 1 core, 0.5 GiB memory"),
        ("ARM", None, None, [Interface(name="eth0", kind="Ethernet", mbit_per_s=None)], "ARM, Ethernet"),
        ("ARM", None, None, [Interface(name="eth0", kind="Ethernet", mbit_per_s=100)], "ARM, Ethernet 100 Mbit/s"),
        ("ARM", None, None, [Interface(name="eth0", kind="Ethernet", mbit_per_s=2500)], "ARM, Ethernet 2.5 Gbit/s"),
    ],
)
def test_what_is_not_told_is_left_out(cpu: str | None, cores: Any, memory_bytes: int | None, network: Any, words: str) -> None:
    assert machine_words(cpu, cores, memory_bytes, (None,), network) == words


def test_the_page_tells_hosts_their_hardware_and_the_memory_of_their_gpus(tmp_path: Path) -> None:
    record = make_record(make_cell(nodes=2, gpus_per_node=2, device="cuda"), 1, **{"provenance.gpu_memory_bytes": 80 << 30})
    text = page(collected(tmp_path / "digits", [record], repeats=1, baseline={"nodes": 2}), {})
    node = "2 × Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz, 40 cores (80 threads), 188 GiB memory, 2 × NVIDIA H100 80GB HBM3"
    assert f"Measured on 2 hosts: each {node}, InfiniBand 100 Gbit/s." in text
    assert "<dd>2: node00, node01</dd>" in text
    assert "<dt>GPU memory</dt><dd>80 GiB each</dd>" in text


def node(**changes: Any) -> Node:
    return msgspec.convert({"hostname": "a", "gpus": [], "cpu_model": "X", **changes}, Node)


def loaded(others_cores: float | None) -> dict[str, Any]:
    return {"cores": 4, "before": None, "during": {"seconds": 10.0, "others_cores": others_cores}}


def test_nodes_of_two_kinds_are_mixed() -> None:
    assert not machines_of([node(), node(hostname="b")]).mixed_hardware
    mixed = machines_of([node(), node(hostname="b", cpu_model="Y")])
    assert (mixed.mixed_hardware, mixed.hardware, mixed.hosts) == (True, "X + Y", "a,b")


def test_bytes_of_all_nodes_are_known_where_each_node_tells_them() -> None:
    one, other = node(stage={"bytes": 5, "copied_bytes": 2}), node(stage={"bytes": 5, "copied_bytes": None})
    assert (machines_of([one, other]).staged_bytes, machines_of([one, other]).copied_bytes) == (10, None)
    assert machines_of([one, node()]).staged_bytes is None


def test_whether_others_were_seen_on_all_nodes() -> None:
    assert machines_of([node(load=loaded(0.5)), node(load=loaded(0.1))]).others_unseen is False
    assert machines_of([node(load=None), node(load=loaded(0.1))]).others_unseen
    assert machines_of([node()]).others_unseen is None
