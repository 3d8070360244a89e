"""One rank of a training or inference run in PyTorch. In and out: docs/developers/framework-contract.md. It writes events, parameters
and the exit code, 0 done, 41 out of memory, 42 the loss is not finite, 43 stopped at a checkpoint, 44 a disk or the staged dataset failed,
1 anything else. The run itself is slipway_pytorch/training.py.
"""

from __future__ import annotations

from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Import here, and not above: torch takes most of a second to import, and its failure must be an event too."""
    from slipway_pytorch.training import run  # type: ignore[import-not-found]

    return run


if __name__ == "__main__":
    main(load)
