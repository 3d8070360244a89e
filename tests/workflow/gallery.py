"""The studies of examples/ and of `slipway init` as one, in which each trains a few steps: what CI has the time for."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

STEPS = {"warmup": 1, "measured": 4}


def together(studies: Iterable[Path], nodes: int) -> dict[str, Any]:
    """A study with every cell of these on so many nodes, once. Datasets and programs are called by the folder of their study too."""
    found: dict[str, Any] = {"study": "gallery", "datasets": {}, "programs": {}, "base": {"steps": STEPS, "repeats": 1}, "include": []}
    for path in studies:
        study, example = yaml.safe_load(path.read_text()), path.parent.name
        for kind in ("datasets", "programs"):
            found[kind] |= {f"{example}_{name}": _placed(keys, path.parent) for name, keys in study.get(kind, {}).items()}
        base = {key: value for key, value in study["base"].items() if key not in found["base"]}
        base |= {kind: f"{example}_{base[kind]}" for kind in ("dataset", "program") if base.get(kind, "none") != "none"}
        axes = {key: values for key, values in study["axes"].items() if key != "nodes"}
        found["include"] += [{**base, **dict(zip(axes, row, strict=True)), "nodes": nodes} for row in itertools.product(*axes.values())]
    return {**found, "limits": {"walltime": "5m"}}


def _placed(keys: dict[str, Any], folder: Path) -> dict[str, Any]:
    """With its paths as they are from everywhere."""
    return keys | {key: str(folder / keys[key]) for key in ("path", "folder", "python") if key in keys}
