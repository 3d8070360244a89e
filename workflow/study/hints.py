"""Hint at the right place of keys that stand in the wrong place, in the wrong file, or under another tool's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from workflow.study.model import Base, CellKeys, StudyFile
from workflow.study.site_file import SiteFile

_TO_BASE_OR_AXES: Final = "a cell's key stands in base (one value), axes or zip (several), or include"
_TO_SITE: Final = "the site file says where and how a study runs (--site NAME_OR_PATH)"
_OF_SNAKEMAKE: Final = ("mode",)
"""Keys that are options of Snakemake, too."""
HINTS: Final[Mapping[str, str]] = {
    **{key: _TO_SITE for key in SiteFile.model_fields if key not in StudyFile.model_fields},
    **{key: _TO_BASE_OR_AXES for key in Base.model_fields},
    "program": f"{_TO_BASE_OR_AXES}; programs of your own are described under programs",
    "repeats": "repeats stands in base: all cells have the same number of runs",
    "walltime": "write limits: {walltime: 30m}",
    "gpu_hours": "write limits: {gpu_hours: 10}",
    "init": "write limits: {init: 10m}",
    "directives": "directives are shell text for the scheduler and belong in the site file, which is trusted; a study may carry none",
    "learning_rate": "write optimizer: {learning_rate: ...}",
    "lr": "write optimizer: {learning_rate: ...}",
    "momentum": "write optimizer: {momentum: ...}",
    "weight_decay": "write optimizer: {weight_decay: ...}",
    "warmup": "write steps: {warmup: ...}",
    "measured": "write steps: {measured: ...}",
    "num_nodes": "write nodes",
    "gpus": "write gpus_per_node",
    "scaling": "strong or weak scaling is derived from nodes and batch; leave it out",
    "name": "write study: NAME",
    "<<": "YAML's merge key is not allowed: write the values out",
}


def key_of_option(option: str) -> str | None:
    """Explain where to write the key of a cell that somebody typed as an option, such as `--nodes`; None where it is no key."""
    key = option.removeprefix("--").replace("-", "_")
    if key not in CellKeys.model_fields or key in _OF_SNAKEMAKE:
        return None
    what = f"{key} are an axis of the study: write them" if key.endswith("s") else f"{key} is a key of the study: write it"
    return f"{what} in the study file, under axes (several values: `axes: {{{key}: [...]}}`) or base (one)"
