"""What a GPU can do at most: floating-point operations per second, by its name and the precision, as its vendor publishes them. Pure.

Dense: without structured sparsity, which doubles the numbers that data sheets print large. fp32 is that of the CUDA cores; the others are
those of the tensor cores with sums in fp32, where the GPU has them. Where the vendor's publication was not at hand, `source` names who
quotes it. A GPU is found by its whole name, as nvidia-smi shows it (which shows no GPU of AMD, so that its row is for records of other
origin): a name that is like another, a MIG instance or a precision that the GPU has no hardware for has no number here, and nobody
guesses one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TERA: Final = 1e12


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The peak of one GPU, and the publication (`source`) that states it."""

    flop_per_s: float
    source: str


@dataclass(frozen=True, kw_only=True)
class _Sheet:
    """TFLOP/s of the GPUs with these names (without the prefix), None where it has no such hardware, or nothing is published."""

    names: tuple[str, ...]
    source: str
    fp32: float | None = None
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None


_SHEETS: Final = (
    _Sheet(names=("B200",), source="NVIDIA Blackwell architecture technical brief, 2024: half of the sparse numbers", fp16=2250, bf16=2250),
    _Sheet(
        names=("GB200",),
        source="NVIDIA Blackwell architecture technical brief, 2024, GB200 with 1,200 W, as glennklockwood.com quotes it",
        **{"tf32": 1250, "fp16": 2500, "bf16": 2500},
    ),
    _Sheet(
        names=("GH200 480GB", "GH200 120GB", "GH200 144G HBM3e"),
        source="NVIDIA GH200 data sheet, its numbers without sparsity",
        **{"fp32": 67, "tf32": 494, "fp16": 990, "bf16": 990},
    ),
    _Sheet(
        names=("H200",),
        source="NVIDIA H200 data sheet, 2024: half of the sparse numbers",
        **{"fp32": 67, "tf32": 494.5, "fp16": 989.5, "bf16": 989.5},
    ),
    _Sheet(
        names=("H200 NVL",),
        source="NVIDIA H200 product page, column H200 NVL: half of the sparse numbers",
        **{"fp32": 60, "tf32": 417.5, "fp16": 835.5, "bf16": 835.5},
    ),
    _Sheet(
        names=("H100 80GB HBM3",),
        source="NVIDIA H100 architecture white paper, 2023, H100 SXM5",
        **{"fp32": 66.9, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4},
    ),
    _Sheet(
        names=("H100 PCIe",),
        source="NVIDIA H100 architecture white paper, 2023, H100 PCIe",
        **{"fp32": 51.2, "tf32": 378, "fp16": 756, "bf16": 756},
    ),
    _Sheet(
        names=("H100 NVL",),
        source="NVIDIA H100 NVL data sheet, 2024: half of the sparse numbers",
        **{"fp32": 60, "tf32": 417.5, "fp16": 835.5, "bf16": 835.5},
    ),
    _Sheet(names=("H800",), source="verl's flops_counter.py, as H100 SXM; no data sheet was at hand", fp16=989, bf16=989),
    _Sheet(names=("H800 PCIe",), source="tables of open programs, as H100 PCIe; no data sheet was at hand", fp16=756, bf16=756),
    _Sheet(
        names=("H20",),
        source="verl's flops_counter.py for bf16, press reports for the others; no data sheet was at hand",
        **{"fp32": 44, "tf32": 74, "fp16": 148, "bf16": 148},
    ),
    _Sheet(
        names=("A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-40GB", "A100-PCIE-80GB", "A100 80GB PCIe"),
        source="NVIDIA A100 data sheet, 2021",
        **{"fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312},
    ),
    _Sheet(names=("A40",), source="NVIDIA A40 data sheet, 2021", fp32=37.4, tf32=74.8, fp16=149.7, bf16=149.7),
    _Sheet(
        names=("A30",),
        source="tables of open programs that name NVIDIA's data sheet, which was not at hand",
        **{"fp32": 10.3, "tf32": 82, "fp16": 165, "bf16": 165},
    ),
    _Sheet(names=("A10",), source="NVIDIA A10 data sheet, 2021", fp32=31.2, tf32=62.5, fp16=125, bf16=125),
    _Sheet(names=("L40S",), source="NVIDIA L40S data sheet, 2023", fp32=91.6, tf32=183, fp16=362.05, bf16=362.05),
    _Sheet(
        names=("L40",),
        source="NVIDIA L40 data sheet, as a reseller (mullet.se) and Lightning's throughput.py quote it",
        **{"fp32": 90.5, "tf32": 90.5, "fp16": 181.05, "bf16": 181.05},
    ),
    _Sheet(
        names=("RTX 6000 Ada Generation",),
        source="NVIDIA RTX 6000 Ada specification, as grafikkarten.com (fp32) and tables of open programs quote it",
        **{"fp32": 91.1, "fp16": 364, "bf16": 364},
    ),
    _Sheet(names=("L4",), source="NVIDIA L4 data sheet, 2023: half of the sparse numbers", fp32=30.3, tf32=60, fp16=121, bf16=121),
    _Sheet(names=("V100-SXM2-16GB", "V100-SXM2-32GB"), source="NVIDIA V100 data sheet, 2020", fp32=15.7, fp16=125),
    _Sheet(names=("V100-PCIE-16GB", "V100-PCIE-32GB"), source="NVIDIA V100 data sheet, 2020", fp32=14, fp16=112),
    _Sheet(names=("V100-SXM3-32GB",), source="NVIDIA DGX-2 data sheet, 2018: 2 PFLOP/s of 16 GPUs", fp16=125),
    _Sheet(names=("P100-SXM2-16GB",), source="NVIDIA P100 data sheet, 2016", fp32=10.6, fp16=21.2),
    _Sheet(names=("P100-PCIE-12GB", "P100-PCIE-16GB"), source="NVIDIA P100 data sheet, 2016", fp32=9.3, fp16=18.7),
    _Sheet(
        names=("AMD Instinct MI300X",),
        source="tables of open programs (verl's flops_counter.py: 1307) that name AMD's data sheet, which was not at hand",
        **{"fp32": 163.4, "fp16": 1307.4, "bf16": 1307.4},
    ),
    _Sheet(names=("T4",), source="NVIDIA T4 data sheet, 2019", fp32=8.1, fp16=65),
    _Sheet(
        names=("GeForce RTX 4090",),
        source="NVIDIA Ada GPU architecture white paper, 2022",
        **{"fp32": 82.6, "tf32": 82.6, "fp16": 165.2, "bf16": 165.2},
    ),
    _Sheet(
        names=("GeForce RTX 3090",),
        source="NVIDIA Ampere GA102 white paper, 2020",
        **{"fp32": 35.6, "tf32": 35.6, "fp16": 71, "bf16": 71},
    ),
)
_BY_NAME: Final = {name: sheet for sheet in _SHEETS for name in sheet.names}
_BEFORE: Final = ("NVIDIA ", "Tesla ")
"""Prefixes that only some drivers put before a name."""


def peak(model: str, precision: str) -> Peak | None:
    """Return the peak of one GPU with the name `model`, for matrices of `precision` (fp32, tf32, bf16, fp16), or None if unknown."""
    name = model
    for word in _BEFORE:
        name = name.removeprefix(word)
    sheet = _BY_NAME.get(name)
    if sheet is None:
        return None
    tera = {"fp32": sheet.fp32, "tf32": sheet.tf32, "bf16": sheet.bf16, "fp16": sheet.fp16}.get(precision)
    return None if tera is None else Peak(flop_per_s=tera * TERA, source=sheet.source)
