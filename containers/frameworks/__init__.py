"""Training frameworks: one folder is one framework; its `framework.yaml` says how it is launched and what it can do.

The folder's programs are started by path and import their framework, numpy, the reader and what lies beside them. This package itself is
never on their path: a folder called `jax` on it would hide `jax`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base.errors import ConfigError, UnsupportedRequest
from base.names import choices
from containers.frameworks.spec import FrameworkSpec, read_framework

_HERE: Final = Path(__file__).resolve().parent
FRAMEWORKS: Final[dict[str, Path]] = {name: _HERE / name for name in ("pytorch", "jax", "tensorflow", "keras", "paddle")}

# Key of a cell -> field of `supports`.
SUPPORTED: Final = {
    "mode": "modes",
    "model": "models",
    "precision": "precision",
    "layout": "layout",
    "comm_hook": "comm_hook",
    "device": "devices",
}


@functools.cache
def load_framework(name: str) -> FrameworkSpec:
    """The specification of the framework `name`, read once: each of thousands of cells asks for it. Raises ConfigError: unknown name, or a
    framework.yaml that is wrong."""
    if name not in FRAMEWORKS:
        raise ConfigError(f"framework {name!r} is not known; {choices(name, FRAMEWORKS)}")
    return read_framework(FRAMEWORKS[name] / "framework.yaml")


def check_supports(spec: FrameworkSpec, cell: Mapping[str, object]) -> None:
    """Raise UnsupportedRequest if `spec` cannot run a cell with these keys (of SUPPORTED; others are ignored).
    The device `site`, not resolved yet, passes."""
    device = str(cell.get("device", "site"))
    for key, field in SUPPORTED.items():
        if key not in cell or (key == "device" and device == "site"):
            continue
        value = str(cell[key])
        valid: tuple[str, ...] = getattr(spec.supports, field)
        if value not in valid:
            raise UnsupportedRequest(f"framework {spec.name!r} does not support {key} {value!r}; {choices(value, valid)}")
        if device == "cpu" and spec.supports.needs_cuda(field, value):
            left = [word for word in valid if not spec.supports.needs_cuda(field, word)]
            raise UnsupportedRequest(
                f"framework {spec.name!r} supports {key} {value!r} on GPUs only, and the device is the CPU; valid: {', '.join(left)}"
            )
