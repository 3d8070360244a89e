"""From what a scheduler says to UUIDs: every scheduler x device cgroup or not x NVML's order or the bus's x MIG or not.

The node is that of goldens.md: eight GPUs at 06, 07, 0A, 0B, 85, 86, 89, 8A, of which 1 and 3 are granted, 07:00.0 and 0B:00.0. The
environments are built from the schedulers' documentation, see schedulers.md, section 1.
"""

import pytest

from base.errors import AllocationError
from cluster.gpus.decision import decide, granted_gpus
from cluster.gpus.listing import Gpu, parse_gpus, parse_instances, short_bus, with_instances
from tests.cluster.smi import answer

UUIDS = [gpu.uuid for gpu in parse_gpus(answer("p100x8-query"))]
BUSES = tuple(gpu.bus_id for gpu in parse_gpus(answer("p100x8-query")))
SLURM = {"SLURM_JOB_ID": "17"}
LSF = {"LSB_JOBID": "17"}
PBS = {"PBS_JOBID": "17.server", "PBS_NODEFILE": "/nodes"}
SGE = {"JOB_ID": "17", "SGE_ROOT": "/opt/sge"}

BOTH = f"{UUIDS[1]},{UUIDS[3]}"


def visible(environ: dict[str, str], numbers: str = "1,3", hidden: str = "0,1") -> tuple[dict[str, str], dict[str, str]]:
    """`environ` and CUDA_VISIBLE_DEVICES without device cgroup, and with it, where the others are hidden."""
    return environ | {"CUDA_VISIBLE_DEVICES": numbers}, environ | {"CUDA_VISIBLE_DEVICES": hidden}


WHOLE = {
    "slurm step": visible(SLURM | {"SLURM_STEP_GPUS": "1,3", "SLURM_GPUS_ON_NODE": "2"}),
    "slurm batch": visible(SLURM | {"SLURM_JOB_GPUS": "1,3", "SLURM_NODEID": "0"}),
    "slurm env_uuid": visible(SLURM | {"SLURM_STEP_GPUS": "1,3"}, BOTH, BOTH),
    "lsf": visible(LSF),
    "lsf tasks": (
        LSF | {"CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES1": "1", "CUDA_VISIBLE_DEVICES2": "3"},
        LSF | {"CUDA_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES1": "0", "CUDA_VISIBLE_DEVICES2": "1"},
    ),
    "openpbs": visible(PBS | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, BOTH.replace(",", "\\,"), BOTH.replace(",", "\\,")),
    "grid engine": (SGE | {"SGE_HGR_gpu_card": "1 3", "SGE_HGR_threads": "7"}, SGE | {"SGE_HGR_gpu_card": "1 3"}),
    "grid engine, names": (SGE | {"SGE_HGR_NVIDIA_GPUS": "gpu1 gpu3"}, SGE | {"SGE_HGR_NVIDIA_GPUS": "gpu1 gpu3"}),
    "UUIDs": visible({}, f"{UUIDS[3]},{UUIDS[1]}", f"{UUIDS[3]},{UUIDS[1]}"),
    "no job": visible({}),
}


def node(order: str, hidden: bool) -> tuple[Gpu, ...]:
    """As nvidia-smi shows it: under a device cgroup it shows the granted ones only, and numbers them from 0."""
    gpus = parse_gpus(answer("p100x8-query" if order == "bus" else "p100x8-other-order-query"))
    shown = [gpu for gpu in gpus if not hidden or short_bus(gpu.bus_id) in ("07:00.0", "0B:00.0")]
    return tuple(gpu._replace(number=number) for number, gpu in enumerate(shown))


@pytest.mark.parametrize("known", [True, False], ids=["driver tells all", "driver tells nothing"])
@pytest.mark.parametrize("order", ["bus", "other"])
@pytest.mark.parametrize(
    ("environ", "hidden"),
    [
        pytest.param(environ, hidden, id=f"{name}, {'cgroup' if hidden else 'no cgroup'}")
        for name, environs in WHOLE.items()
        for hidden, environ in enumerate(environs)
    ],
)
def test_one_and_three_are_07_and_0b(environ: dict[str, str], hidden: bool, order: str, known: bool) -> None:
    found = granted_gpus(node(order, hidden), environ, node_buses=BUSES if known else ())
    assert [short_bus(gpu.bus_id) for gpu in found] == ["07:00.0", "0B:00.0"]
    assert [gpu.uuid for gpu in found] == [UUIDS[1], UUIDS[3]]


def test_a_step_s_own_list_comes_before_the_job_s_count() -> None:
    environ = SLURM | {"SLURM_STEP_GPUS": "1,3", "SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "1,3"}
    assert [gpu.uuid for gpu in granted_gpus(node("bus", False), environ)] == [UUIDS[1], UUIDS[3]]


@pytest.mark.parametrize("environ", [{}, SLURM, LSF, PBS, SGE], ids=["no job", "slurm", "lsf", "pbs", "sge"])
def test_several_that_nobody_names_are_refused_unless_the_node_is_ours_alone(environ: dict[str, str]) -> None:
    with pytest.raises(AllocationError, match="nothing says which of the 8 GPUs that nvidia-smi shows were granted"):
        granted_gpus(node("bus", False), environ)
    assert len(granted_gpus(node("bus", False), environ, everything=True)) == 8
    assert len(granted_gpus(node("bus", False)[:1], environ)) == 1
    assert granted_gpus((), environ) == ()


@pytest.mark.parametrize(
    "environ",
    [
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "-1"},
        PBS | {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        SLURM | {"CUDA_VISIBLE_DEVICES": "NoDevFiles"},
        SLURM | {"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": "1,3", "SLURM_NODEID": "0"},
        SLURM | {"SLURM_GPUS_ON_NODE": "0"},
        LSF | {"CUDA_VISIBLE_DEVICES": ""},
    ],
)
def test_no_gpus_is_an_answer_too(environ: dict[str, str]) -> None:
    decision = decide(node("bus", False), environ, everything=True)
    assert (decision.gpus, decision.rule, decision.refusal) == ((), "nothing", None)


def test_the_list_of_the_first_node_is_not_that_of_others() -> None:
    environ = SLURM | {"SLURM_JOB_GPUS": "1,3", "SLURM_NODEID": "1", "CUDA_VISIBLE_DEVICES": "4,6"}
    assert [gpu.uuid for gpu in granted_gpus(node("bus", False), environ)] == [UUIDS[4], UUIDS[6]]


def test_where_some_are_hidden_numbers_of_the_node_count_those_too() -> None:
    shown = tuple(gpu for gpu in node("bus", False) if gpu.uuid in (UUIDS[1], UUIDS[3], UUIDS[4]))
    environ = SLURM | {"SLURM_STEP_GPUS": "1,3", "SLURM_GPUS_ON_NODE": "2"}
    assert [gpu.uuid for gpu in granted_gpus(shown, environ, node_buses=BUSES)] == [UUIDS[1], UUIDS[3]]
    with pytest.raises(AllocationError, match=r"names '0', which is 06:00.0 and hidden from this process"):
        granted_gpus(shown, environ | {"SLURM_STEP_GPUS": "0,3"}, node_buses=BUSES)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (SLURM | {"SLURM_GPUS_ON_NODE": "2"}, "2 GPUs were granted, nvidia-smi shows 8, and nothing says which"),
        (SLURM | {"SLURM_STEP_GPUS": "1,9"}, "SLURM_STEP_GPUS names '9', which is not among 0=GPU-"),
        (SLURM | {"SLURM_GPUS_ON_NODE": "9"}, "9 GPUs were granted, nvidia-smi shows fewer"),
        ({"CUDA_VISIBLE_DEVICES": f"{UUIDS[1]},3"}, "neither UUIDs nor numbers"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-unknown"}, "names 'GPU-unknown', which is not among 0="),
        ({"CUDA_VISIBLE_DEVICES": "8"}, "CUDA_VISIBLE_DEVICES names '8', which is not among"),
        (SGE | {"SGE_HGR_gpu": "/dev/nvidia1"}, "SGE_HGR_gpu='/dev/nvidia1': neither UUIDs nor numbers"),
    ],
)
def test_what_cannot_be_decided_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(AllocationError, match=words):
        granted_gpus(node("bus", False), environ, everything=True)


# -- MIG: two A100 at 07 and 0B, two instances each; granted are the second of the one and the first of the other

UNITS = with_instances(parse_gpus(answer("a100-mig-query")), parse_instances(answer("a100-mig-list")))
GRANTED = [UNITS[1].uuid, UNITS[2].uuid]
DIVIDED: dict[str, tuple[dict[str, str], bool]] = {  # environment, whether it says UUIDs
    "slurm": (SLURM | {"SLURM_STEP_GPUS": "1,2", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": ",".join(GRANTED)}, True),
    "slurm, index only": (SLURM | {"SLURM_STEP_GPUS": "1,2", "SLURM_GPUS_ON_NODE": "2"}, False),
    "lsf": (LSF | {"CUDA_VISIBLE_DEVICES": ",".join(GRANTED)}, True),
    "openpbs": (PBS | {"CUDA_VISIBLE_DEVICES": "\\,".join(GRANTED)}, True),
    "grid engine": (SGE | {"SGE_HGR_gpu": "1 2"}, False),
    "grid engine, UUIDs": (SGE | {"SGE_HGR_gpu": " ".join(GRANTED)}, True),
}


@pytest.mark.parametrize("order", ["bus", "other"])
@pytest.mark.parametrize("hidden", [False, True], ids=["no cgroup", "cgroup"])
@pytest.mark.parametrize("scheduler", DIVIDED)
def test_mig_instances_are_known_by_uuid_alone(scheduler: str, hidden: bool, order: str) -> None:
    environ, says_uuids = DIVIDED[scheduler]
    gpus = parse_gpus(answer("a100-mig-query"))
    if order == "other":
        gpus = tuple(gpu._replace(number=1 - gpu.number) for gpu in reversed(gpus))
    units = with_instances(gpus, parse_instances(answer("a100-mig-list")))
    shown = tuple(unit for unit in units if unit.uuid in GRANTED) if hidden else units
    if says_uuids or hidden:
        assert [gpu.uuid for gpu in granted_gpus(shown, environ)] == GRANTED
    else:
        with pytest.raises(AllocationError, match="are numbers, and GPUs of this node are divided by MIG"):
            granted_gpus(shown, environ, everything=True)


def test_a_mig_uuid_that_no_list_holds_is_taken_as_it_stands() -> None:
    name = f"MIG-{UUIDS[1]}/7/0"
    assert [gpu.uuid for gpu in granted_gpus(node("bus", False), LSF | {"CUDA_VISIBLE_DEVICES": name})] == [name]
    with pytest.raises(AllocationError, match="is not among"):
        granted_gpus(UNITS, LSF | {"CUDA_VISIBLE_DEVICES": name})


# -- explained


def test_the_steps_tell_how_it_was_decided() -> None:
    assert decide(node("other", False), WHOLE["slurm step"][0], node_buses=BUSES).steps == (
        "scheduler: slurm",
        "SLURM_STEP_GPUS='1,3': numbers that count all GPUs of the node in PCI order",
        "CUDA_VISIBLE_DEVICES='1,3': numbers that count the GPUs seen here in PCI order",
        "granted: 2 GPUs, says the scheduler",
        "seen here: 8 GPUs: " + ", ".join(f"{uuid} at {short_bus(bus)}" for uuid, bus in zip(UUIDS, BUSES, strict=True)),
        f"SLURM_STEP_GPUS: 1 is {UUIDS[1]} at 07:00.0",
        f"SLURM_STEP_GPUS: 3 is {UUIDS[3]} at 0B:00.0",
        "rule: more are seen than were granted: SLURM_STEP_GPUS says which, in PCI order",
        f"granted: 2 GPUs: {UUIDS[1]} at 07:00.0, {UUIDS[3]} at 0B:00.0",
    )


def test_behind_a_cgroup_they_tell_how_many_are_hidden() -> None:
    steps = decide(node("bus", True), WHOLE["slurm step"][1], node_buses=BUSES).steps
    assert "the driver knows 8 GPUs of this node: 6 hidden from this process" in steps


def test_a_refusal_is_the_last_step() -> None:
    steps = decide(node("bus", False), SLURM).steps
    assert steps[1].startswith("no variable names GPUs: looked for SLURM_STEP_GPUS, ")
    assert steps[-1].startswith("refused: nothing says which of the 8 GPUs")
