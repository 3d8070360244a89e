"""The peaks of GPUs: what is published of a name, and nothing of another."""

from __future__ import annotations

from typing import get_args

import pytest

from cluster.gpus.peak import peak
from containers.frameworks.spec import Precision
from workflow.run.record.events import PRECISIONS


@pytest.mark.parametrize(
    ("model", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H200", "tf32", 494.5),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("A100-SXM4-40GB", "fp16", 312),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla T4", "fp16", 65),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA GH200 480GB", "bf16", 990),
        ("NVIDIA A30", "bf16", 165),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("NVIDIA L40", "fp16", 181.05),
        ("NVIDIA H20", "fp32", 44),
        ("NVIDIA H800", "bf16", 989),
        ("NVIDIA H800 PCIe", "bf16", 756),
        ("NVIDIA GB200", "tf32", 1250),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA RTX 6000 Ada Generation", "fp32", 91.1),
        ("AMD Instinct MI300X", "fp16", 1307.4),
    ],
)
def test_a_gpu_is_found_by_its_name(model: str, precision: str, tera: float) -> None:
    found = peak(model, precision)
    assert found is not None
    assert found.flop_per_s == pytest.approx(tera * 1e12)
    assert len(found.source) > 20


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ("NVIDIA H100", "bf16"),  # which of them?
        ("nvidia l40s", "bf16"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16"),
        ("NVIDIA H100 80GB HBM3 + NVIDIA H200", "bf16"),
        ("Tesla V100-SXM2-32GB", "bf16"),
        ("Tesla T4", "tf32"),
        ("NVIDIA H200", "fp8"),
        ("NVIDIA H800", "tf32"),  # no source was found
        ("NVIDIA B200", "tf32"),
        ("NVIDIA RTX 6000 Ada Generation", "tf32"),
        ("AMD Instinct MI300X", "tf32"),
        ("", "fp32"),
    ],
)
def test_nothing_is_guessed(model: str, precision: str) -> None:
    assert peak(model, precision) is None


def test_the_numbers_of_a_gpu_fit_each_other() -> None:
    """Of each of them bf16 and fp16 are alike and twice tf32: where one number is of sparse matrices, they differ."""
    names = [
        "B200",
        "GB200",
        "H800",
        "H800 PCIe",
        "H20",
        "A30",
        "L40",
        "RTX 6000 Ada Generation",
        "H200",
        "H200 NVL",
        "H100 80GB HBM3",
        "H100 PCIe",
        "H100 NVL",
        "GH200 480GB",
        "A100-SXM4-80GB",
        "A40",
        "A10",
        "L40S",
        "L4",
    ]
    for name in names:
        tf32, bf16, fp16 = (peak(name, precision) for precision in ("tf32", "bf16", "fp16"))
        assert bf16 is not None
        assert fp16 == bf16
        assert tf32 is None or tf32.flop_per_s == pytest.approx(bf16.flop_per_s / 2, rel=0.02)


def test_programs_tell_the_precisions_that_a_study_has() -> None:
    assert get_args(Precision) == PRECISIONS
