"""What each framework is told of the allocation, by golden values: those with which its programs ran without its own launcher."""

import json
from dataclasses import replace

import pytest

from containers.rank_variables import RENDERINGS, VARIABLES, RankPosition, fill, host_port, names_in, rendered

PLACE = RankPosition(
    rank=1,
    local_rank=0,
    local_size=1,
    node_rank=1,
    nodes=2,
    address="127.0.0.3",
    interface="lo",
    device="cpu",
    master=("127.0.0.2", 29500),
    endpoints=(("127.0.0.2", 29521), ("127.0.0.3", 29522)),
    servers=2,
)
GOLDEN = {
    "tf_config": {
        "TF_CONFIG": '{"cluster": {"worker": ["127.0.0.2:29521", "127.0.0.3:29522"]}, "task": {"type": "worker", "index": 1}}',
    },
    "paddle": {
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": "127.0.0.2:29521,127.0.0.3:29522",
        "PADDLE_CURRENT_ENDPOINT": "127.0.0.3:29522",
        "PADDLE_MASTER": "127.0.0.2:29500",
        "PADDLE_DISTRI_BACKEND": "gloo",
    },
    "dmlc": {
        "DMLC_PS_ROOT_URI": "127.0.0.2",
        "DMLC_PS_ROOT_PORT": "29500",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "2",
        "DMLC_NODE_HOST": "127.0.0.3",
        "DMLC_ROLE": "worker",
    },
    "horovod": {
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_HOSTNAME": "127.0.0.3",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.2",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "29500",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
    },
}


@pytest.mark.parametrize("name", RENDERINGS)
def test_a_rank_gets_these_variables(name: str) -> None:
    assert rendered((name,), PLACE) == GOLDEN[name]
    assert VARIABLES[name] == GOLDEN[name].keys()


def test_several_are_given_together_and_a_gpu_has_its_own_backend() -> None:
    found = rendered(("tf_config", "paddle"), replace(PLACE, device="cuda"))
    assert "PADDLE_DISTRI_BACKEND" not in found
    assert json.loads(found["TF_CONFIG"])["task"]["index"] == 1
    assert rendered((), PLACE) == {}


def test_an_address_with_colons_stands_in_brackets() -> None:
    assert host_port(("fd00::1", 5)) == "[fd00::1]:5"
    assert "HOROVOD_GLOO_IFACE" not in rendered(("horovod",), replace(PLACE, interface=None))


def test_known_names_are_filled_in_and_other_braces_are_text() -> None:
    word = '{python}-{args.width} {unknown} {"a": 1} {} {Data}'
    assert fill(word, {"python": "py", "args.width": "8", "Data": "no"}) == 'py-8 {unknown} {"a": 1} {} {Data}'
    assert names_in(word) == ["python", "args.width", "unknown"]


def test_a_value_is_not_filled_in_again() -> None:
    assert fill("{args.text}{data}", {"args.text": "{data}", "data": "/d"}) == "{data}/d"
