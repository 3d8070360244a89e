"""Return the peak of a GPU: floating-point operations per second, by name and precision, as its vendor publishes them. Pure.

Dense: without structured sparsity, which doubles the numbers that data sheets print large. fp32 is that of the CUDA cores; the others are
those of the tensor cores with sums in fp32, where the GPU has them. Where the vendor's publication was not at hand, `source` names who
quotes it. A GPU is found by its whole name, as nvidia-smi shows it (which shows no GPU of AMD, so that its row is for records of other
origin): a name that is like another, a MIG instance or a precision that the GPU has no hardware for has no number here, and nobody
guesses one.
"""

from dataclasses import dataclass
from typing import Final

TERA: Final = 1e12


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The peak of one GPU, and the publication (`source`) that states it."""

    flop_per_s: float
    source: str


_COLUMNS: Final = ("fp32", "tf32", "fp16", "bf16")
_SHEETS: Final = """
    -     -   2250   2250  B200 | NVIDIA Blackwell architecture technical brief, 2024: half of the sparse numbers
    -  1250   2500   2500  GB200 | NVIDIA Blackwell architecture technical brief, 2024, GB200 with 1,200 W, as glennklockwood.com quotes it
   67   494    990    990  GH200 480GB, GH200 120GB, GH200 144G HBM3e | NVIDIA GH200 data sheet, its numbers without sparsity
   67 494.5  989.5  989.5  H200 | NVIDIA H200 data sheet, 2024: half of the sparse numbers
   60 417.5  835.5  835.5  H200 NVL | NVIDIA H200 product page, column H200 NVL: half of the sparse numbers
 66.9 494.7  989.4  989.4  H100 80GB HBM3 | NVIDIA H100 architecture white paper, 2023, H100 SXM5
 51.2   378    756    756  H100 PCIe | NVIDIA H100 architecture white paper, 2023, H100 PCIe
   60 417.5  835.5  835.5  H100 NVL | NVIDIA H100 NVL data sheet, 2024: half of the sparse numbers
    -     -    989    989  H800 | verl's flops_counter.py, as H100 SXM; no data sheet was at hand
    -     -    756    756  H800 PCIe | tables of open programs, as H100 PCIe; no data sheet was at hand
   44    74    148    148  H20 | verl's flops_counter.py for bf16, press reports for the others; no data sheet was at hand
 19.5   156    312    312  A100-SXM4-40GB, A100-SXM4-80GB, A100-PCIE-40GB, A100-PCIE-80GB, A100 80GB PCIe | NVIDIA A100 data sheet, 2021
 37.4  74.8  149.7  149.7  A40 | NVIDIA A40 data sheet, 2021
 10.3    82    165    165  A30 | tables of open programs that name NVIDIA's data sheet, which was not at hand
 31.2  62.5    125    125  A10 | NVIDIA A10 data sheet, 2021
 91.6   183 362.05 362.05  L40S | NVIDIA L40S data sheet, 2023
 90.5  90.5 181.05 181.05  L40 | NVIDIA L40 data sheet, as a reseller (mullet.se) and Lightning's throughput.py quote it
 91.1     -    364    364  RTX 6000 Ada Generation | NVIDIA's specification, as grafikkarten.com (fp32) and tables of open programs quote it
 30.3    60    121    121  L4 | NVIDIA L4 data sheet, 2023: half of the sparse numbers
 15.7     -    125      -  V100-SXM2-16GB, V100-SXM2-32GB | NVIDIA V100 data sheet, 2020
   14     -    112      -  V100-PCIE-16GB, V100-PCIE-32GB | NVIDIA V100 data sheet, 2020
    -     -    125      -  V100-SXM3-32GB | NVIDIA DGX-2 data sheet, 2018: 2 PFLOP/s of 16 GPUs
 10.6     -   21.2      -  P100-SXM2-16GB | NVIDIA P100 data sheet, 2016
  9.3     -   18.7      -  P100-PCIE-12GB, P100-PCIE-16GB | NVIDIA P100 data sheet, 2016
163.4     - 1307.4 1307.4  AMD Instinct MI300X | open programs (verl's flops_counter.py) that name AMD's data sheet, which was not at hand
  8.1     -     65      -  T4 | NVIDIA T4 data sheet, 2019
 82.6  82.6  165.2  165.2  GeForce RTX 4090 | NVIDIA Ada GPU architecture white paper, 2022
 35.6  35.6     71     71  GeForce RTX 3090 | NVIDIA Ampere GA102 white paper, 2020
"""
"""TFLOP/s by _COLUMNS (`-`: no such hardware, or nothing is published), the names of the GPUs without the prefix, and the source."""
_BEFORE: Final = ("NVIDIA ", "Tesla ")
"""Prefixes that only some drivers put before a name."""


def _peaks() -> dict[tuple[str, str], Peak]:
    found = {}
    for line in _SHEETS.strip().splitlines():
        *numbers, rest = line.split(maxsplit=len(_COLUMNS))
        names, source = rest.split(" | ")
        for name in names.split(", "):
            for precision, number in zip(_COLUMNS, numbers, strict=True):
                if number != "-":
                    found[name, precision] = Peak(flop_per_s=float(number) * TERA, source=source)
    return found


_PEAKS: Final = _peaks()


def peak(model: str, precision: str) -> Peak | None:
    """Return the peak of one GPU with the name `model`, for matrices of `precision` (fp32, tf32, bf16, fp16), or None if unknown."""
    name = model
    for word in _BEFORE:
        name = name.removeprefix(word)
    return _PEAKS.get((name, precision))
