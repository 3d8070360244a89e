"""Tell Slipway how a training by Lightning goes.

    from slipway_lightning import SlipwayCallback

    trainer = lightning.Trainer(callbacks=[SlipwayCallback()], ...)

A step of the study is one of the optimizer, of `accumulate_grad_batches` batches. By hand, without Slipway around it, nothing happens.
"""

import sys
from typing import Any, Optional

import slipway_events
import slipway_parts

# Two distributions hold the same library, and a callback of one of them is none of the other.
if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    import pytorch_lightning as lightning
else:
    import lightning.pytorch as lightning


class SlipwayCallback(lightning.Callback):
    """A callback that writes a line for each step of the optimizer, and ends the training when the study has its steps. `samples` and
    `tokens`: how many a batch has, or a function of the batch that tells it; `split`: what the validation is done on, whose `val_loss` and
    `val_accuracy` are taken where the module logs them."""

    def __init__(self, samples: Any = slipway_events.rows, tokens: Any = None, split: str = "validation") -> None:
        self.run = slipway_events.start()
        self.run.facts.setdefault("provenance", {"lightning_version": lightning.__version__})
        self.samples = samples
        self.tokens = tokens
        self.split = split
        self.optimizer_steps = 0
        self.validated: Optional[int] = 0
        self.parts = slipway_parts.Parts(self.run, None)
        self.removes_gradients = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin when the network stands on its device, the sanity check is done."""
        slipway_events.start(model=trainer.strategy.model)
        self.parts = slipway_parts.Parts(self.run, trainer.strategy.model)
        self.run.begin()
        self.optimizer_steps = trainer.global_step
        if self.run.active:
            self.run.needs(trainer.estimated_stepping_batches - trainer.global_step, "max_steps (or max_epochs) of the Trainer")
        self.run.wants_batch()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.run.has_batch()
        self.parts.begin()

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Begin the removal of the old gradients, which Lightning does between forward and backward."""
        self.removes_gradients = pl_module.automatic_optimization
        if self.removes_gradients:
            self.parts.end("forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self.parts.end("optimizer" if self.removes_gradients else "forward")
        self.removes_gradients = False

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.parts.end_backward()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.parts.end("optimizer")
        self.parts.stop()
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.run.batch_done(batch, self.samples, self.tokens, loss)
        if trainer.global_step > self.optimizer_steps:
            self.optimizer_steps = trainer.global_step
            self.run.step_done()
            if self.run.all_done():
                trainer.should_stop = True
        self.run.wants_batch()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.validated = 0
        self.run.evaluating()

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.run.evaluating()
        count = slipway_events.rows(batch)
        self.validated = None if self.validated is None or count is None else self.validated + count

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics of the validation, which are those that the module logged."""
        found = trainer.callback_metrics
        if "val_loss" in found and self.run.rank == 0 and not trainer.sanity_checking:
            accuracy = found.get("val_accuracy")
            samples = (self.validated or 0) * trainer.world_size
            accuracy = None if accuracy is None else float(accuracy)
            epoch = trainer.current_epoch + 1 if trainer.is_last_batch else None
            self.run.evaluation(self.split, float(found["val_loss"]), samples or None, accuracy, epoch)
        self.run.back()
