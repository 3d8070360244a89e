"""Tell Slipway how a training by the Trainer of Hugging Face goes.

    import slipway_huggingface

    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    slipway_huggingface.follow(trainer)
    trainer.train()

A step of the study is one of the optimizer, of `gradient_accumulation_steps` batches. By hand, without Slipway around it, nothing happens.
"""

from typing import Any, Callable, Optional

import slipway_events
import slipway_parts
import transformers


class SlipwayCallback(transformers.TrainerCallback):
    """A callback that writes a line for each step of the optimizer, and ends the training when the study has its steps."""

    def __init__(self, samples: Any = slipway_events.rows, tokens: Any = None, split: str = "validation") -> None:
        self.run = slipway_events.start()
        self.run.facts.setdefault("provenance", {"transformers_version": transformers.__version__})
        self.samples = samples
        self.tokens = tokens
        self.split = split
        self.parts: Optional[slipway_parts.Parts] = None

    def watched(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the Trainer's own step over a batch, which alone knows the batch and its part of the loss."""

        def step(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            self.parts = parts = self.parts or slipway_parts.Parts(self.run, model)
            parts.begin()
            loss = training_step(model, inputs, *rest, **named)
            parts.end_backward()
            self.run.batch_done(inputs, self.samples, self.tokens, loss)
            return loss

        return step

    def watched_forward(self, compute_loss: Callable[..., Any]) -> Callable[..., Any]:
        """Return the Trainer's own forward, which an evaluation calls, too."""

        def forward(*given: Any, **named: Any) -> Any:
            if self.parts is None:
                return compute_loss(*given, **named)
            self.parts.end("copy")
            found = compute_loss(*given, **named)
            self.parts.end("forward")
            return found

        return forward

    def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        slipway_events.start(model=found.get("model"))
        self.run.begin()
        self.run.needs(state.max_steps - state.global_step, "max_steps (or num_train_epochs) of TrainingArguments")
        self.run.wants_batch()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run.has_batch()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.parts is not None:
            self.parts.end("optimizer")
            self.parts.stop()
        self.run.step_done()
        if self.run.all_done():
            control.should_training_stop = True
        self.enter(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.enter(control)

    def enter(self, control: Any) -> None:
        """Begin what the Trainer does next, before it takes the next batch."""
        if control.should_evaluate:
            self.run.evaluating()
        elif control.should_save:
            self.run.phase("checkpoint")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run.back()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run.wants_batch()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run.evaluating()

    def on_evaluate(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        """Report the numbers of an evaluation, which are of all ranks."""
        metrics = found.get("metrics") or {}
        if "eval_loss" in metrics and self.run.rank == 0:
            dataset: Any = getattr(found.get("eval_dataloader"), "dataset", None)
            samples = len(dataset) if hasattr(dataset, "__len__") else None
            self.run.evaluation(self.split, metrics["eval_loss"], samples, metrics.get("eval_accuracy"), state.epoch)
        self.run.back()
        if control.should_save:
            self.run.phase("checkpoint")


def follow(trainer: Any, samples: Any = slipway_events.rows, tokens: Any = None, split: str = "validation") -> None:
    """Follow the Trainer; called before `trainer.train()`. `samples` and `tokens`: how many a batch has, or a function of the batch that
    tells it; `split`: on what the Trainer evaluates."""
    callback = SlipwayCallback(samples, tokens, split)
    if callback.run.active:
        trainer.training_step = callback.watched(trainer.training_step)
        trainer.compute_loss = callback.watched_forward(trainer.compute_loss)
        trainer.add_callback(callback)
