"""Read the training frameworks: one folder is one framework; its `framework.yaml` says how it is launched and what it can do.

The folder's programs are started by path and import their framework, numpy, the reader and what lies beside them. This package itself is
never on their path: a folder called `jax` on it would hide `jax`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from base import humanize, process
from base.errors import ConfigError, UnsupportedRequest
from containers.frameworks.spec import FrameworkSpec, read_framework
from containers.models import reads_tokens

_HERE: Final = Path(__file__).resolve().parent
OWN: Final = ("pytorch", "jax", "keras", "paddle", "tensorflow")
HISTORIC: Final = ("bigdl", "caffe", "caffe2", "chainer", "cntk", "dynet", "lasagne", "mxnet", "theano")
"""What HISTORIC_DISTRIBUTION brings: the frameworks of the literature that are no longer developed."""
HISTORIC_DISTRIBUTION: Final = "slipway-cluster-historic"
HISTORIC_IN_CHECKOUT: Final = process.CODE_ROOT / "historic" / "slipway_historic"
NAMES: Final = (*OWN, *sorted(HISTORIC))
"""What a study may write after `framework:`, whether it is installed or not."""
ENTRY_POINTS: Final = "slipway.frameworks"
"""The group of entry points by which a distribution brings frameworks: each names a package, of which each folder with a framework.yaml is
one."""

# Key of a cell -> field of `supports`.
SUPPORTED: Final = {
    "mode": "modes",
    "model": "models",
    "precision": "precision",
    "layout": "layout",
    "comm_hook": "comm_hook",
    "strategy": "strategies",
    "backend": "backends",
    "augmentation": "augmentation",
    "reader": "readers",
    "conv_algorithm": "conv_algorithm",
    "device": "devices",
}

_DEVICES: Final = (
    ("cuda", "cpu", "GPUs only, and the device is the CPU"),
    ("cpu", "cuda", "CPUs only, and the device is a GPU"),
)
"""The kinds of devices that words may need: that one, the other one, and how a refusal names them."""


@functools.cache
def framework_folders() -> Mapping[str, Path]:
    """Return the folders of all frameworks that are here, by name: first those of Slipway, then those of other distributions."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    packages = [find_spec(point.module) for point in entry_points(group=ENTRY_POINTS)]
    places = [Path(place) for package in packages if package is not None for place in package.submodule_search_locations or ()]
    brought = {path.parent.name: path.parent for place in (*places, HISTORIC_IN_CHECKOUT) for path in place.glob("*/framework.yaml")}
    return {name: _HERE / name for name in OWN} | {name: brought[name] for name in sorted(brought) if name not in OWN}


@functools.cache
def load_framework(name: str) -> FrameworkSpec:
    """Return the specification of the framework `name`, read once: each of thousands of cells asks for it. Raises ConfigError: unknown
    name, one that is not installed, or a framework.yaml that is wrong.
    """
    folder = _HERE / name if name in OWN else framework_folders().get(name)  # ours need no look for others
    if folder is not None:
        return read_framework(folder / "framework.yaml")
    if name in HISTORIC:
        raise ConfigError(
            f"framework {name!r} is not installed: `pip install {HISTORIC_DISTRIBUTION}` brings it, or run Slipway from a checkout, "
            "which has it"
        )
    raise ConfigError(f"framework {name!r} is not known; {humanize.choices(name, NAMES)}")


def check_supports(spec: FrameworkSpec, cell: Mapping[str, object]) -> None:
    """Raise UnsupportedRequest if `spec` cannot run a cell with these keys (of SUPPORTED; others are ignored).
    The device `site`, not resolved yet, passes."""
    check_words(f"framework {spec.name!r}", spec.supports, cell, spec.why)
    check_strategy(cell)


def check_words(who: str, supports: Any, cell: Mapping[str, object], why: Mapping[str, str] | None = None) -> None:
    """Check any `supports` with the fields of spec.Supports; of a field that is None all words are right. For the message: `who`, and
    `why` it has not a word."""
    device = str(cell.get("device", "site"))
    for key, field in SUPPORTED.items():
        if key not in cell or (key == "device" and device == "site"):
            continue
        if key == "layout" and reads_tokens(str(cell.get("model"))):
            continue  # which is an order of pixels
        value = str(cell[key])
        valid: tuple[str, ...] | None = getattr(supports, field)
        if valid is not None and value not in valid:
            because = f": {why[value]}" if why and value in why else ""
            raise UnsupportedRequest(f"{who} does not support {key} {value!r}{because}; {humanize.choices(value, valid)}")
        for other, only, names in _DEVICES:
            excluded: tuple[str, ...] = getattr(getattr(supports, f"{other}_only", None), field, ())
            if device == only and value in excluded:
                left = [word for word in valid or () if word not in excluded]
                others = f"valid: {', '.join(left)}" if left else f"valid: another one, or device: {other}"
                raise UnsupportedRequest(f"{who} supports {key} {value!r} on {names}; {others}")


def check_strategy(cell: Mapping[str, object]) -> None:
    """Raise UnsupportedRequest for keys that a strategy other than `ddp` leaves no room for."""
    if (strategy := str(cell.get("strategy", "ddp"))) == "ddp":
        return
    if cell.get("mode", "train") != "train":
        raise UnsupportedRequest(
            f"strategy {strategy!r} is a way to train, and with mode {cell['mode']!r} ranks are on their own; valid: ddp"
        )
    if cell.get("comm_hook", "none") != "none":
        raise UnsupportedRequest(
            f"strategy {strategy!r} has no hooks, found comm_hook {cell['comm_hook']!r}; valid: comm_hook none, or ddp"
        )
