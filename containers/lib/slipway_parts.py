"""Tell the parts of the steps that a library of PyTorch makes. One file for Python 3.6 and later, standard library only: PyTorch is handed
over by who has imported it."""

from typing import Any, Callable

DDP = "DistributedDataParallel"


def part_exchange(ddp: Any, end: Callable[[str], None]) -> None:
    """Call `end` with the name of each part of forward and backward of `ddp` when it ends. The wait for the other ranks is a part of its
    own: before the forward for the running statistics of rank 0, after the backward for the gradients of all. The gradient of the first
    layer is the last to be there."""
    ddp.register_forward_pre_hook(lambda *_: end("forward"))
    ddp.module.register_forward_pre_hook(lambda *_: end("exchange"))
    first = next(parameter for parameter in ddp.module.parameters() if parameter.requires_grad)
    first.register_post_accumulate_grad_hook(lambda _: end("backward"))


class Parts:
    """The parts of the steps of `run`, each of which begins where the one before ends. `model`: the network, as the library calls it. Of
    several ranks forward and backward are told where they are DistributedDataParallel's, of PyTorch 2.1 and later: else nobody knows what
    is waited for in them."""

    def __init__(self, run: Any, model: Any) -> None:
        self.run = run
        self.is_ddp = type(model).__name__ == DDP and hasattr(next(model.parameters()), "register_post_accumulate_grad_hook")
        self.begun: Any = None
        self.last = ""
        if self.is_ddp:
            part_exchange(model, self.end)

    def begin(self) -> None:
        self.begun, self.last = self.run.moment(), ""

    def end(self, name: str) -> None:
        """End a part; nothing where none has begun, as in an evaluation."""
        if self.begun is None:
            return
        begun, self.begun, self.last = self.begun, self.run.moment(), name
        if name and (self.is_ddp or self.run.world_size == 1 or name in ("copy", "optimizer")):
            self.run.parts.setdefault(self.run.step, []).append((name, begun, self.begun))

    def end_backward(self) -> None:
        """End the wait for the gradients of the other ranks, or where there are none the backward."""
        self.end("exchange" if self.last == "backward" else "" if self.is_ddp else "backward")

    def stop(self) -> None:
        """End the parts: what follows is in none."""
        self.begun = None
