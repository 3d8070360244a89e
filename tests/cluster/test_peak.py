"""The peaks of GPUs: what is published of a name, and nothing of another."""

from typing import get_args

import pytest

from cluster.gpus.peak import _PEAKS, peak
from containers.frameworks.spec import Precision
from workflow.run.record.events import PRECISIONS


@pytest.mark.parametrize(
    ("model", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H200", "tf32", 494.5),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("A100-SXM4-40GB", "fp16", 312),
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
        ("NVIDIA H200", "fp8"),
        ("NVIDIA B200", "tf32"),
        ("", "fp32"),
    ],
)
def test_nothing_is_guessed(model: str, precision: str) -> None:
    assert peak(model, precision) is None


def test_the_numbers_of_a_gpu_fit_each_other() -> None:
    """Of each of them bf16 and fp16 are alike and twice tf32: where one number is of sparse matrices, they differ."""
    names = {name for name, precision in _PEAKS if precision == "bf16" and not name.startswith("AMD")}
    assert len(names) > 20
    for name in names:
        tf32, bf16, fp16 = (peak(name, precision) for precision in ("tf32", "bf16", "fp16"))
        assert bf16 is not None
        assert fp16 == bf16
        assert tf32 is None or tf32.flop_per_s == pytest.approx(bf16.flop_per_s / 2, rel=0.02)


def test_programs_tell_the_precisions_that_a_study_has() -> None:
    assert get_args(Precision) == PRECISIONS
