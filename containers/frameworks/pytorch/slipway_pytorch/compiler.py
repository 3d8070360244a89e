"""Keep PyTorch's compiler out of a program that never compiles.

`optim.SGD` and `DistributedDataParallel` import torch._dynamo, with sympy and 800 modules, only to ask it for nothing: 0.8 s of every
start (torch 2.13). A stand-in answers the four questions that they ask; whoever asks it anything else gets the real module, imported
at that moment, so on another version of torch this can be slower, but not wrong.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


def _disable(function: Any = None, *_: Any, **__: Any) -> Any:
    """Return the function itself, as torch._dynamo.disable does where nothing is compiled."""
    return function if function is not None else _disable


class _StandIn(ModuleType):
    """A module with some attributes; a missing one is looked up in the real module, which then takes its place."""

    def __init__(self, name: str, attributes: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(attributes)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute != "__path__":
            raise AttributeError(attribute)
        if isinstance(sys.modules.get(NAME), _StandIn):
            del sys.modules[NAME]
        return getattr(importlib.import_module(self.__name__), attribute)


def leave_out() -> None:
    """Put the stand-in in place, unless the compiler has been imported already. After `import torch`, before the first optimizer."""
    if NAME not in sys.modules:
        known = {
            "disable": _disable,
            "graph_break": lambda *_, **__: None,
            "utils": _StandIn(f"{NAME}.utils", {"get_optimize_ddp_mode": lambda: "ddp_optimizer"}),
            "trace_rules": _StandIn(f"{NAME}.trace_rules", {"clear_lru_cache": lambda: None}),
        }
        sys.modules[NAME] = _StandIn(NAME, known)
