"""Which backend Keras computes with. It is chosen before Keras is imported, so that nothing above may import it."""

from __future__ import annotations

import os
from typing import Any

from slipway_program.parameters import Arrays, Cell
from slipway_program.trainer import Trainer


def make_trainer(cell: Cell, dataset: Any, start: Arrays) -> Trainer:
    """Make a rank on the backend of the cell; `auto` is TensorFlow."""
    if cell["backend"] == "jax":
        os.environ["KERAS_BACKEND"] = "jax"
        from .on_jax import OnJax

        return OnJax(cell, dataset, start)
    if cell["backend"] == "torch":
        os.environ.update(KERAS_BACKEND="torch", KERAS_TORCH_DEVICE=cell["device"])  # of several GPUs the one that PyTorch is set to
        from .on_torch import OnTorch

        return OnTorch(cell, dataset, start)
    os.environ["KERAS_BACKEND"] = "tensorflow"
    from .on_tensorflow import OnTensorFlow

    return OnTensorFlow(cell, dataset, start)
