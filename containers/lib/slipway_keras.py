"""Tell Slipway how a training by Keras 3 goes, with each of its backends.

    from slipway_keras import SlipwayCallback

    model.fit(x, y, batch_size=32, epochs=10, callbacks=[SlipwayCallback(samples=32)])

A step of the study is one of the optimizer, of its `gradient_accumulation_steps` batches. By hand, without Slipway around it, nothing
happens.
"""

from typing import Dict, Optional

import keras
import slipway_events


class SlipwayCallback(keras.callbacks.Callback):
    """A callback that writes a line for each step of the optimizer, and ends the training when the study has its steps. `samples` and
    `tokens`: how many the batches of a step have on this rank, since Keras does not show a batch; `split`: what is evaluated on."""

    def __init__(self, samples: Optional[int] = None, tokens: Optional[int] = None, split: str = "validation") -> None:
        super().__init__()
        self.run = slipway_events.start()
        self.run.facts.setdefault("provenance", {"keras_version": keras.__version__, "keras_backend": keras.backend.backend()})
        self.samples = samples
        self.tokens = tokens
        self.split = split
        self.batches = 0
        self.loss_sum = 0.0
        self.accumulated = 1
        self.under_way = 0
        self.checked = False
        self.epochs_done: Optional[int] = None
        self.async_safe = not self.run.active  # by hand Keras need not wait for what does nothing

    def on_train_begin(self, logs: object = None) -> None:
        self.accumulated = getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1
        if self.run.active and getattr(self.model, "steps_per_execution", 1) not in (1, None):
            raise ValueError("compile() was given steps_per_execution > 1, whose steps nobody can tell apart: leave it out")
        slipway_events.start(model=self.model)
        self.run.begin()
        self.run.wants_batch()

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Reset the sums, as Keras begins its means anew."""
        self.batches, self.loss_sum, self.epochs_done = 0, 0.0, epoch + 1
        steps = self.params.get("steps")
        if steps and self.run.active and not self.checked:
            self.checked = True
            self.run.needs((self.params["epochs"] - epoch) * steps // self.accumulated, "epochs (or steps_per_epoch) of fit()")

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Mark the end of the wait, unless TensorFlow fetches the batch later, inside of the step."""
        if keras.backend.backend() != "tensorflow":
            self.run.has_batch()

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, float]] = None) -> None:
        """Count a batch. Keras tells the mean loss of the epoch so far, of which this batch has made the last part."""
        if not self.run.active or self.run.all_done():
            return
        self.batches += 1
        mean = (logs or {}).get("loss")
        if mean is not None:
            before, self.loss_sum = self.loss_sum, mean * self.batches
            self.run.loss((self.run.current or 0.0) + (self.loss_sum - before) / self.accumulated)
        self.under_way += 1  # not anew in each epoch: neither does the optimizer
        if self.under_way == self.accumulated:
            self.under_way = 0
            self.run.batch_done(None, self.samples, self.tokens)
            self.run.step_done()
            if self.run.all_done():
                self.model.stop_training = True
        self.run.wants_batch()

    def on_test_begin(self, logs: object = None) -> None:
        self.run.evaluating()

    def on_test_batch_begin(self, batch: int, logs: object = None) -> None:
        self.run.evaluating()

    def on_test_end(self, logs: Optional[Dict[str, float]] = None) -> None:
        if logs and "loss" in logs and self.run.rank == 0:
            self.run.evaluation(self.split, logs["loss"], accuracy=logs.get("accuracy"), epoch=self.epochs_done)
        self.run.back()
