"""What nvidia-smi shows, read; what a container sees, compared; who else uses a GPU."""

import os
from pathlib import Path

import pytest

from base.errors import AllocationError
from cluster import processes
from cluster.gpus import listing
from cluster.gpus.decision import listed_uuids, mismatch, not_granted
from cluster.gpus.listing import (
    Gpu,
    bus_key,
    in_pci_order,
    node_buses,
    other_use,
    parse_apps,
    parse_gpus,
    parse_instances,
    query_apps,
    query_gpus,
    short_bus,
    split_gpus,
    with_instances,
)
from tests.cluster.smi import answer, install

P100 = "Tesla P100-SXM2-16GB"
EIGHT = parse_gpus(answer("p100x8-query"))
MIG = with_instances(parse_gpus(answer("a100-mig-query")), parse_instances(answer("a100-mig-list")))


def test_the_answer_is_read() -> None:
    assert EIGHT[3] == Gpu(3, "GPU-3c3b7a5e-9d21-4f60-8e0b-5a1f0c27d9e3", P100, "0000:0B:00.0")
    assert parse_gpus("") == ()
    assert parse_gpus("0, GPU-1, 00000000:01:00.0, a, with a comma\n")[0].model == "a, with a comma"


@pytest.mark.parametrize(
    "line", ["No devices were found", "x, GPU-1, 0:01:00.0, y", "0, MIG, 0:01:00.0, y", "0, GPU-1, y", "0, GPU-1, [Unknown Error], y"]
)
def test_another_answer_is_an_error(line: str) -> None:
    with pytest.raises(AllocationError, match="nvidia-smi answered"):
        parse_gpus(line)


def test_bus_ids_of_old_and_new_drivers_are_the_same() -> None:
    assert bus_key("0000:0B:00.0") == bus_key("00000000:0b:00.0") == bus_key("0B:00.0") == (0, 11, 0, 0)
    assert [short_bus(text) for text in ("0000:0B:00.0", "00000001:0b:00.0")] == ["0B:00.0", "0001:0B:00.0"]
    with pytest.raises(ValueError, match="no PCI bus id"):
        bus_key("[N/A]")


def test_the_order_is_that_of_the_bus_and_not_of_the_numbers() -> None:
    other = parse_gpus(answer("p100x8-other-order-query"))
    assert [gpu.number for gpu in in_pci_order(other)] == [4, 5, 6, 7, 0, 1, 2, 3]
    assert [gpu.uuid for gpu in in_pci_order(other)] == [gpu.uuid for gpu in EIGHT]


def test_mig_instances_stand_in_the_place_of_their_gpu() -> None:
    assert [(gpu.number, gpu.uuid[:12], gpu.model, gpu.is_instance) for gpu in MIG] == [
        (0, "MIG-c6d4f1ef", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", True),
        (0, "MIG-cba663e8", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", True),
        (1, "MIG-1e4a94a5", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", True),
        (1, "MIG-6e0a1c52", "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", True),
    ]


def test_a_list_tells_what_can_be_used() -> None:
    assert listed_uuids(answer("p100x8-list")) == tuple(gpu.uuid for gpu in EIGHT)
    assert listed_uuids(answer("a100-mig-list")) == tuple(gpu.uuid for gpu in MIG)
    gpu = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
    assert listed_uuids(answer("a100-mig-r450-list"))[:2] == (f"MIG-{gpu}/1/0", f"MIG-{gpu}/9/0")
    assert listed_uuids("") == ()


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ("ab", None),
        ("ba", None),
        ("a", ["of 2 granted it shows 1", "1 missing (GPU-b)"]),
        ("", ["it shows 0", "2 missing (GPU-a, GPU-b)"]),
        ("abc", ["it shows 3", "1 that were not granted (GPU-c)"]),
        ("cd", ["2 missing (GPU-a, GPU-b), 2 that were not granted (GPU-c, GPU-d)"]),
    ],
)
def test_what_a_container_sees_is_compared_with_what_it_was_given(seen: str, words: list[str] | None) -> None:
    said = mismatch(["GPU-a", "GPU-b"], [f"GPU-{letter}" for letter in seen])
    assert (said is None) is (words is None)
    assert all(word in (said or "") for word in words or [])


def test_what_nothing_hides_is_told_by_uuid() -> None:
    assert not_granted(["GPU-a", "GPU-b"], ["GPU-b", "GPU-a"]) is None
    said = not_granted(["GPU-a", "GPU-b"], ["GPU-a", "GPU-b", "GPU-c", "MIG-d"])
    assert said is not None
    assert said.startswith("the container shows 2 GPUs beyond the 2 granted (GPU-c, MIG-d): only CUDA_VISIBLE_DEVICES")


def test_split() -> None:
    assert [[gpu.number for gpu in part] for part in split_gpus(EIGHT, 2, 3)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(AllocationError, match="3 nodes x 3 GPUs were asked of this machine, which shows 8"):
        split_gpus(EIGHT, 3, 3)


# -- other processes


def test_processes_on_gpus_are_read() -> None:
    apps = parse_apps(answer("compute-apps"))
    assert [(app.pid, app.used_mib, app.name) for app in apps] == [
        (41207, 10245, "/usr/bin/python3"),
        (41300, 402, "./a, b.out"),
        (977, None, "[Not Found]"),
    ]
    assert parse_apps(answer("compute-apps-not-supported")) == ()
    with pytest.raises(ValueError, match="nvidia-smi answered"):
        parse_apps("something else\n")


def test_processes_of_others_on_our_gpus_are_found() -> None:
    apps = [app._replace(owner="alice") if app.pid == 41207 else app for app in parse_apps(answer("compute-apps"))]
    found = other_use([EIGHT[1].uuid, EIGHT[3].uuid, EIGHT[5].uuid], apps, {41300})
    assert [use.text for use in found] == [
        f"{EIGHT[1].uuid} is used by process 41207 (/usr/bin/python3) of alice, which holds 10245 MiB",
        f"{EIGHT[3].uuid} is used by process 977 ([Not Found]) of another user",
    ]
    assert [use.uuid for use in found] == [EIGHT[1].uuid, EIGHT[3].uuid]
    assert other_use([EIGHT[0].uuid], apps, ()) == ()


def test_the_owner_of_a_process() -> None:
    import pwd

    assert processes.owner_of(os.getpid()) == pwd.getpwuid(os.getuid()).pw_name
    assert processes.owner_of(2**22 + 1) is None


# -- asking


def test_without_nvidia_smi_there_are_no_gpus(path: Path) -> None:
    assert query_gpus() == ()


@pytest.mark.processes
def test_gpus_are_asked_for(path: Path) -> None:
    install(path, ["a100-mig-query", "a100-mig-list", "compute-apps"])
    assert query_gpus() == MIG
    assert len(query_apps()) == 3


@pytest.mark.processes
def test_where_all_are_hidden_there_are_none(path: Path) -> None:
    install(path, ["no-devices"])
    assert query_gpus() == ()


@pytest.mark.processes
def test_a_lost_gpu_is_named_with_its_node(path: Path) -> None:
    install(path, ["gpu-lost"])
    with pytest.raises(AllocationError, match=rf"(?s)GPUs of {os.uname().nodename} cannot be listed.*0000:0B:00.0: GPU is lost"):
        query_gpus()


@pytest.mark.processes
def test_who_uses_gpus_may_not_be_known(path: Path) -> None:
    install(path, [])
    assert listing.query_other_use([]) == ()
    (found,) = listing.query_other_use(["GPU-a"])
    assert found.uuid == ""
    assert "is not known" in found.text


def test_all_gpus_of_the_node_are_known_by_the_driver(tmp_path: Path) -> None:
    for name in ("0000:85:00.0", "0000:06:00.0", "else"):
        (tmp_path / name).mkdir()
    assert node_buses(tmp_path) == ("0000:06:00.0", "0000:85:00.0")
    assert node_buses(tmp_path / "nothing") == ()
