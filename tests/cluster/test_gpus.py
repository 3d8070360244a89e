from __future__ import annotations

import pytest

from base.errors import AllocationError
from cluster.gpus import Gpu, parse_gpus, visible_gpus

ANSWER = "0, GPU-06aa, Tesla P100-SXM2-16GB\n1, GPU-07bb, Tesla P100-SXM2-16GB\n3, GPU-0bcc, Tesla P100-SXM2-16GB\n"


def test_the_answer_is_read() -> None:
    assert parse_gpus(ANSWER)[2] == Gpu(3, "GPU-0bcc", "Tesla P100-SXM2-16GB")
    assert parse_gpus("") == ()


@pytest.mark.parametrize("line", ["No devices were found", "x, GPU-1, y", "0, MIG, y", "0, GPU-1"])
def test_another_answer_is_an_error(line: str) -> None:
    with pytest.raises(AllocationError, match="nvidia-smi answered"):
        parse_gpus(line)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ["GPU-06aa", "GPU-07bb", "GPU-0bcc"]),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, ["GPU-0bcc", "GPU-07bb"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-07"}, ["GPU-07bb"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"NV_GPU": "1,3"}, ["GPU-07bb", "GPU-0bcc"]),
    ],
)
def test_the_environment_restricts(environ: dict[str, str], expected: list[str]) -> None:
    assert [gpu.uuid for gpu in visible_gpus(parse_gpus(ANSWER), environ)] == expected


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AllocationError, match=r"CUDA_VISIBLE_DEVICES names '2'"):
        visible_gpus(parse_gpus(ANSWER), {"CUDA_VISIBLE_DEVICES": "2"})
